"""The way to a SuperLink and its certificate, each fault told apart, against small servers on loopback."""

import contextlib
import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.common.errors import FedgeoError
from app.launch.certificates import Certificates, certificates
from app.launch.superlink import free_port
from app.tools.superlink_check import check_superlink
from scripts import check_site as script


class Health(http.server.BaseHTTPRequestHandler):
    """What a SuperLink answers to GET /health."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


class Quiet(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None: ...


@contextlib.contextmanager
def serving(made: Certificates | None = None, host: str = "127.0.0.1") -> Iterator[int]:
    """A server's port; plaintext where there are no certificates."""
    server = Quiet((host, 0), Health)
    if made is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.server, made.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))


def fault(address: str, certificate: Path) -> str:
    with pytest.raises(FedgeoError) as refused:
        check_superlink(address, certificate)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_superlink_is_reached(made: Certificates, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(made) as port:
        assert "a SuperLink answers" in check_superlink(f"localhost:{port}", made.authority)
        words = ["--superlink", f"127.0.0.1:{port}", "--root-certificates"]
        assert script.main([*words, str(made.authority)]) == 0
        assert script.main([*words, str(made.key)]) == 1
    assert "no certificate can be read there" in capsys.readouterr().err


def test_nothing_listens(made: Certificates) -> None:
    port = free_port()
    assert fault(f"127.0.0.1:{port}", made.authority).startswith(f"127.0.0.1:{port}: nothing listens there (")


def test_it_speaks_plaintext(made: Certificates) -> None:
    with serving() as port:
        assert "it speaks plaintext: start the SuperLink with its certificate" in fault(
            f"localhost:{port}", made.authority
        )


def test_it_is_no_superlink(made: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            for _ in range(3):  # the first look, TLS, plaintext
                server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        assert "speaks no TLS" in fault(f"127.0.0.1:{server.getsockname()[1]}", made.authority)


def test_the_certificate_is_by_another_authority(made: Certificates, tmp_path: Path) -> None:
    other = certificates(tmp_path)
    with serving(other) as port:
        assert "its certificate is by another authority than" in fault(f"localhost:{port}", made.authority)


def test_the_certificate_is_for_another_name(made: Certificates) -> None:
    with serving(made, "127.0.0.2") as port:
        found = fault(f"127.0.0.2:{port}", made.authority)
    assert "its certificate is for localhost, 127.0.0.1, not for 127.0.0.2" in found


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":8000", "localhost:http", "localhost:0", "a:70000"])
def test_an_address_that_is_none(made: Certificates, address: str) -> None:
    assert "must be HOST:PORT" in fault(address, made.authority)
