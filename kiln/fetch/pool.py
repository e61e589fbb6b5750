"""Pools of connections: proxies, certificates, and a way to cut all of them off.

What fetching and the registry client have in common below HTTP itself.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import urllib.request
import weakref
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3

from kiln.errors import BadInput
from kiln.fetch.url import redact, split_credentials


class Pools:
    """Connections by proxy; may be used by several threads.

    ca: file or folder of certificates, "" for the system's. proxy: URL for all requests,
    "" for what the environment says (HTTP_PROXY, HTTPS_PROXY, NO_PROXY).
    """

    def __init__(self, ca: str = "", proxy: str = "") -> None:
        self._ca, self._proxy = ca, proxy
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self._managers: dict[tuple[str, bool], urllib3.PoolManager] = {}
        self._lock = threading.Lock()

    def of(self, url: str, *, direct: bool = False) -> urllib3.PoolManager:
        """The pool that reaches this URL. direct: never through a proxy.

        Raises BadInput "fetch.bad-ca" or "fetch.bad-proxy".
        """
        parts = urlsplit(url)
        proxy = "" if direct else self._proxy
        if not (proxy or direct or urllib.request.proxy_bypass(parts.netloc)):
            environment = urllib.request.getproxies()
            proxy = environment.get(parts.scheme) or environment.get("all") or ""
        secure = parts.scheme == "https" or proxy.startswith("https:")
        with self._lock:
            if (proxy, secure) not in self._managers:
                # Reading the system's certificates takes a tenth of a second.
                context = self._context() if secure else None
                self._managers[proxy, secure] = self._make(proxy, context)
            return self._managers[proxy, secure]

    def cut(self) -> None:
        """End every request under way, also those that wait for a silent server."""
        for connection in tuple(self._connections):
            if connection.sock is not None:
                # Below TLS, whose own shutdown is not for another thread; the socket may
                # just have been closed by its own.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._ca:
            ca = Path(self._ca)
            try:
                if ca.is_dir():
                    context.load_verify_locations(capath=str(ca))
                else:
                    context.load_verify_locations(cafile=str(ca))
            except OSError as error:  # ssl.SSLError is one
                raise BadInput(
                    "fetch.bad-ca",
                    "the certificate bundle cannot be read",
                    where=self._ca,
                    why=str(error),
                    fix="correct PIP_CERT, SSL_CERT_FILE or REQUESTS_CA_BUNDLE",
                ) from error
        return context

    def _make(self, proxy: str, context: ssl.SSLContext | None) -> urllib3.PoolManager:
        if not proxy:
            return self._watch(urllib3.PoolManager(maxsize=16, ssl_context=context))
        address, login = split_credentials(proxy if "://" in proxy else f"http://{proxy}")
        headers = urllib3.make_headers(proxy_basic_auth=":".join(login)) if login else None
        try:
            manager = urllib3.ProxyManager(
                address, maxsize=16, ssl_context=context, proxy_headers=headers
            )
        except urllib3.exceptions.HTTPError as error:
            raise BadInput(
                "fetch.bad-proxy", "the proxy's URL cannot be used", where=redact(address)
            ) from error
        return self._watch(manager)

    def _watch(self, manager: urllib3.PoolManager) -> urllib3.PoolManager:
        """Know every connection that the manager makes, so that `halt` can end it."""
        connections = self._connections

        class Plain(urllib3.HTTPConnectionPool):
            def _new_conn(self) -> Any:
                connections.add(connection := super()._new_conn())
                return connection

        class Secure(urllib3.HTTPSConnectionPool):
            def _new_conn(self) -> Any:
                connections.add(connection := super()._new_conn())
                return connection

        manager.pool_classes_by_scheme = {"http": Plain, "https": Secure}
        return manager
