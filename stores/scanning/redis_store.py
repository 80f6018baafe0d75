"""A store that is one database of a Redis or Valkey server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from kvgate.rules.errors import InputError, UsageError
from kvgate.stores.scanning.entries import Entry, Unread

if TYPE_CHECKING:
    from redis import Redis

SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys")
# A host and its port; nothing in front of the path of a socket.
_HOST = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?|")
_OPTIONS = ("db", "username", "password", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_AT_ONCE = 1000
_SECONDS = 20.0  # within which each answer must come


class RedisStore:
    """Every key of one database, by SCAN and STRLEN; nothing is written.

    Args:
        url: ``redis://host:port/database`` or the like. What stands in front of an ``@`` is used and never shown.
        password: used where the URL holds none.

    Raises:
        InputError: it is no such URL, or the server cannot be asked.
        UsageError: the Python package redis is not installed.

    """

    def __init__(self, url: str, password: str | None = None) -> None:
        self.location = without_credentials(url)
        self._client = _client(url, password, self.location)
        self._counted = 0
        self._size = 0
        self._clustered = False

    def entries(self) -> Iterator[Entry | Unread]:
        """See :class:`Store`."""
        from redis.exceptions import RedisError

        try:
            self._clustered = self._in_a_cluster()
            cursor: int | None = None
            while cursor != 0:
                cursor, keys = self._client.scan(cursor or 0, count=_AT_ONCE)
                yield from self._measured([key for key in keys if isinstance(key, bytes)])
            self._size = int(self._client.dbsize())
        except (RedisError, OSError) as error:
            raise InputError(f"cannot be read: {_why(error)}", where=self.location) from None
        finally:
            self._client.close()

    def notes(self) -> list[str]:
        """See :class:`Store`."""
        return ["Redis does not keep when an entry was written."]

    def partial(self) -> list[str]:
        """See :class:`Store`."""
        why = []
        if self._size != self._counted:
            why.append(f"The server counts {self._size:,} keys, and {self._counted:,} were seen: it is being written.")
        if self._clustered:
            why.append("This is one node of a cluster: the others hold entries too, and were not asked.")
        return why

    def _measured(self, keys: list[bytes]) -> Iterator[Entry | Unread]:
        """Ask for the sizes of some keys at once."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.strlen(key)
        for key, size in zip(keys, pipeline.execute(raise_on_error=False), strict=True):
            self._counted += 1
            name = key.decode("utf-8", "surrogateescape")
            yield Entry(name, size, None) if isinstance(size, int) else Unread(name, _why(size))

    def _in_a_cluster(self) -> bool:
        from redis.exceptions import ResponseError

        try:
            found: Mapping[str, Any] = self._client.info("cluster")
        except ResponseError:  # no permission to ask
            return False
        return bool(found.get("cluster_enabled"))


def without_credentials(url: str) -> str:
    """Return a URL without what stands in front of its host or behind its path.

    A password may hold any character: what stands in front of the last ``@`` is never shown, and nothing where that
    may be a part of the query, or where what should be a host is none.
    """
    scheme, _, rest = url.partition("://")
    user, _, place = rest.rpartition("@")
    address = re.split(r"[?#]", place, maxsplit=1)[0]
    if re.search(r"[?#]", user) or not _HOST.fullmatch(address.partition("/")[0]):
        return f"{scheme}://..."
    return f"{scheme}://{address}"


def _client(url: str, password: str | None, location: str) -> Redis:
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise UsageError(
            "the package redis is not installed", where=location, hint="pip install 'kvgate[redis]'"
        ) from None
    try:
        parts = urlsplit(url)
        # Whatever else may stand there changes how the client answers.
        options = [(name, value) for name, value in parse_qsl(parts.query) if name in _OPTIONS]
        asked = urlunsplit(parts._replace(scheme=parts.scheme.replace("valkey", "redis"), query=urlencode(options)))
        given = {"password": password} if password is not None and not parts.password else {}
        return redis.Redis.from_url(
            asked, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS, retry=Retry(NoBackoff(), 0), **given
        )
    except (ValueError, TypeError):  # whose words may hold the URL
        raise InputError("not a URL of a Redis server", where=location, hint="redis://host:6379/0") from None


def _why(error: BaseException) -> str:
    """What went wrong, on one line; the client's own words name host and port, and no credentials."""
    return " ".join(str(error).split())[:200] or type(error).__name__
