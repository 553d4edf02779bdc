"""Which node this process plays: a simulation's, by its place, or a site's own; and what guards a site."""

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message

from .. import messages
from ..common.code import code_hash
from ..common.errors import FedgeoError, describe
from ..common.files import private_files, private_folder
from ..common.logs import log_error, log_to
from ..common.memory import keep_freed_blocks, spare_imports
from ..config.compose import load
from ..config.node_config import Refusal, Site, check_code, check_run, check_words
from ..config.schema import Config
from ..config.site_bounds import check_bounds
from . import audit, questions, stock
from .hostile_node import HostileNode
from .node import Node, node, state_folder
from .site_node import SiteNode, bounded, site_node, told

log = logging.getLogger(__name__)
keep_freed_blocks()  # in every process that computes for clients


def node_of(message: Message, context: Context) -> Node:
    """The node that this process plays, from the run's configuration and the node's own."""
    site = Site.of(context.node_config)
    if site is not None:
        return site_node_of(site, message, context)
    config = load(str(context.run_config["overrides"]), experiment=str(context.run_config["experiment"]))
    if config.engine == "deployment":
        raise FedgeoError("engine=deployment: this node has no data of its own: start it with data-path and name")
    if config.run_dir and Path(config.run_dir).is_dir():
        log_to(Path(config.run_dir))
    place, state = messages.node_place(context), state_folder(config, context.run_id)
    kind = Node if config.attack.name == "none" else HostileNode
    return node(config, place, state, spread=messages.is_stock(message.content), kind=kind)


def site_node_of(site: Site, message: Message, context: Context) -> SiteNode:
    """The site's node, once the message is found to be one that its run needs, and the site's policy allows."""
    kind, config = message.metadata.message_type, site_config(site, context)
    check_bounds(config, encodes=config.data.family == "images" and site.data.is_dir())
    questions.check(kind, message.content, config)
    here = stock_site_node if messages.is_stock(message.content) else known_site_node
    found = here(site, message, context, config)
    if kind in questions.USES:
        found.admit(kind, message.content)
    return found


def known_site_node(site: Site, message: Message, context: Context, config: Config) -> SiteNode:
    """The site's node, under the number and the classes that the message tells."""
    agreed = messages.Agreed.of(message.content)
    clients = messages.read_clients(message.content)
    if len(clients) != 1:
        raise Refusal(f"site {site.name} is one client, the message is for {len(clients)}")
    return site_node(config, site, clients[0], agreed.run, agreed.classes)


def site_config(site: Site, context: Context) -> Config:
    """The run's configuration under the policy that holds here, refused where a site takes no part in such a run."""
    experiment, words = str(context.run_config["experiment"]), str(context.run_config["overrides"])
    check_words(experiment, words)
    try:
        config = load(words, experiment=experiment)
    except FedgeoError as error:  # it tells of the run's words alone
        raise Refusal(str(error)) from error
    config = bounded(config, site)
    check_run(config, config.privacy.targets)
    return config


def place(message: Message, context: Context) -> Message:
    """Who this node is: its place in a simulation, or its name as a site."""
    site = Site.of(context.node_config)
    if site is None:
        hosted = node_of(message, context).clients if messages.asks_for_clients(message.content) else None
        return messages.place_reply(message, context, hosted)
    site_config(site, context)
    return messages.site_reply(message, site.name)


def stock_site_node(site: Site, message: Message, context: Context, config: Config) -> SiteNode:
    """The site's node for a strategy that knows nothing of fedgeo. Raises Refusal where the policy says no to it.

    The classes and their order are the run's ``federation.classes``, for nobody has asked the sites.
    """
    if not config.privacy.stock:
        raise Refusal(
            f"site {site.name}: the message does not say which run it is of, and a strategy of Flower's own is "
            "answered only where privacy.stock=true, in the run and in the site's policy file"
        )
    if config.federation.classes is None:
        raise Refusal(f"site {site.name}: federation.classes is not set: a stock strategy needs the classes in order")
    return site_node(config, site, 0, stock_run(context), tuple(config.federation.classes))


def stock_run(context: Context) -> str:
    """What stands for the run's number where the server has not told one, 16 hexadecimal digits."""
    return f"{context.run_id % 2**64:016x}"


def guard(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """At a site: nothing is shared before the codes agree, no error tells of its data, and all replies are recorded."""
    try:
        site = Site.of(context.node_config)
    except FedgeoError as error:
        log.error("%s", error)
        return messages.error_reply(message, "this node's node-config is wrong: its SuperNode's log says how")
    if site is None:
        try:
            reply = call_next(message, context)
        except Exception as error:  # a request that cannot be read costs its answer, not the node
            log_error(log, message.metadata.message_type, error)
            return messages.error_reply(message, describe(error))
        if message.metadata.message_type == messages.TRAIN:  # what training needs is imported by now
            spare_imports()
        return reply
    with private_files():
        try:
            return _guarded(site, message, context, call_next)
        except Exception as error:
            log.exception("%s", message.metadata.message_type)
            return messages.error_reply(message, unrecorded(site, error))


def _guarded(
    site: Site, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """As ``guard`` at ``site``. Raises what the site's own log or audit log raises where it cannot be written."""
    private_folder(site.state)
    private_folder(site.output)
    log_to(site.output)
    run, classes = "", tuple[str, ...]()
    try:
        if messages.is_stock(message.content) and message.metadata.message_type in stock.ANSWERED:
            run, code = stock_run(context), code_hash()  # the server tells none: only what the site agreed to is known
        else:
            agreed = messages.Agreed.of(message.content)
            run, code, classes = agreed.run, agreed.code, agreed.classes or ()
        check_code(site, code_hash(), code)
        reply = call_next(message, context)
    except Exception as error:
        log_error(log, message.metadata.message_type, error)
        reply = messages.error_reply(message, told(site, error))
    audit.record(site.output, run, message, reply, classes)
    return reply


def unrecorded(site: Site, error: Exception) -> str:
    """What a server is told where a site cannot keep its records: the system's words, which name no path."""
    reason = getattr(error, "strerror", None) or type(error).__name__
    return (
        f"site {site.name} answers nothing, for it cannot write what it must keep ({reason}): make room in its "
        "state-path and output-path, and let its SuperNode's user write there"
    )
