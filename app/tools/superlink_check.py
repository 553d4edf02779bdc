"""Whether a site's machine reaches the server's SuperLink, and whether its certificate is right: nothing is joined."""

import http.client
import socket
import ssl
from pathlib import Path

from cryptography import x509

from ..common.errors import FedgeoError, cause

SECONDS = 10.0
OTHER_NAME = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
TOO_EARLY_OR_LATE = (9, 10)


def check_superlink(address: str, certificate: Path | None = None) -> str:
    """What answers at ``address``, HOST:PORT, in one line. certificate: of the authority; None: one that all know.

    Raises FedgeoError, which says what is wrong and what to do: nobody listens, no TLS is spoken, the certificate is by
    another authority, for another name or not valid today, or another program answers.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise FedgeoError(f"--superlink {address}: must be HOST:PORT, as for flower-supernode")
    host = host.strip("[]")
    try:
        trusted = ssl.create_default_context(cafile=certificate)
    except (OSError, ssl.SSLError) as error:
        raise FedgeoError(
            f"--root-certificates {certificate}: no certificate can be read there ({cause(error)})"
        ) from None
    _connect(host, int(port), address)
    try:
        status = _health(http.client.HTTPSConnection(host, int(port), timeout=SECONDS, context=trusted))
    except ssl.SSLCertVerificationError as error:
        raise FedgeoError(f"{address}: {_distrust(error, host, int(port), certificate)}") from None
    except (OSError, http.client.HTTPException) as error:
        raise FedgeoError(f"{address}: {_no_tls(error, host, int(port))}") from None
    if status != http.client.OK:
        raise FedgeoError(f"{address}: it speaks TLS with a good certificate, but is no SuperLink: is it its --port?")
    return f"{address}: a SuperLink answers, and its certificate is good"


def _connect(host: str, port: int, address: str) -> None:
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except socket.gaierror:
        raise FedgeoError(
            f"{address}: there is no machine called {host}: correct the name, or ask who runs DNS"
        ) from None
    except TimeoutError:
        raise FedgeoError(
            f"{address}: no answer within {SECONDS:g} s: a firewall between here and there must let port {port} through"
        ) from None
    except OSError as error:
        raise FedgeoError(
            f"{address}: nothing listens there ({cause(error)}): start the SuperLink, or give its --port"
        ) from None


def _health(connection: http.client.HTTPConnection) -> int:
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    finally:
        connection.close()


def _distrust(error: ssl.SSLCertVerificationError, host: str, port: int, certificate: Path | None) -> str:
    if error.verify_code in OTHER_NAME:
        return (
            f"its certificate is for {_names(host, port)}, not for {host}: use such a name, or give the server a "
            f"certificate for {host}"
        )
    if error.verify_code in TOO_EARLY_OR_LATE:
        return f"its certificate is not valid today ({error.verify_message}): renew it, or set this machine's clock"
    whose = f"another authority than the one in {certificate}" if certificate else "no authority that is known here"
    return f"its certificate is by {whose} ({error.verify_message}): give the server's own ca.crt, --root-certificates"


def _names(host: str, port: int) -> str:
    """The names that the server's certificate is for."""
    found = x509.load_pem_x509_certificate(ssl.get_server_certificate((host, port), timeout=SECONDS).encode())
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "no name (it lacks subjectAltName)"
    return ", ".join(str(name.value) for name in names)


def _no_tls(error: Exception, host: str, port: int) -> str:
    try:
        plain = _health(http.client.HTTPConnection(host, port, timeout=SECONDS)) == http.client.OK
    except (OSError, http.client.HTTPException):
        plain = False
    if plain:
        return "it speaks plaintext: start the SuperLink with its certificate and without --insecure"
    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
    return f"something listens there that speaks no TLS ({reason}): is it the SuperLink's --port?"
