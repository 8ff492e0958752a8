"""Routes for administrators: API keys, the audit log, restrictions, placements and moves."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from starlette.responses import Response

from dibs.server.api.problems import ApiProblem, forbidden
from dibs.server.api.responses import done_response, json_response
from dibs.server.api.routing import SEEING, SIGNED_IN, Caller, everywhere, on_path, route, somewhere
from dibs.server.api.schemas import Done, Nothing, Strict
from dibs.server.audit import Audit, AuditPage
from dibs.server.auth.api_key import KeyList, KeyMade, KeyShown, NewKey, key_shown
from dibs.server.auth.keys import KeyAdmin, KeyRefused, KeyService, UnknownKey
from dibs.server.auth.policy import Scope
from dibs.server.placement.registry import DEADLINE
from dibs.server.placement.restrictions import (
    PlacementAdmin,
    PlacementRefused,
    Progress,
    Restriction,
)
from dibs.server.placement.rules import Rule, Unsatisfiable
from dibs.server.quotas import FairQueue
from dibs.server.records.port import MAX_PAGE, Conflict
from dibs.stores.http.names import MARK, decoded, encoded

MAX_BODY = 64 << 10
"""Bytes of a new key or a restriction."""

# -- keys and the audit log -------------------------------------------------------------------------

_ADMIN = somewhere(Scope.ADMIN)


class KeysQuery(Strict, frozen=True):
    """Which keys."""

    ended: bool = False
    """Include keys that were revoked or have expired lately."""


class AuditQuery(Strict, frozen=True):
    """The first line and the length of a page."""

    before: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)] | None = None
    """`next` of the previous page."""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100


class KeyRoutes:
    """API keys and the audit log, for administrators."""

    def __init__(self, keys: KeyService, audit: Audit, changing: FairQueue) -> None:
        """`changing`: fair queue between API keys for changes."""
        self._keys = keys
        self._admin = KeyAdmin(keys, audit)
        self._audit = audit
        self._changing = changing

    @route("GET", "/v1/keys", _ADMIN, query=KeysQuery, answers={200: KeyList})
    async def list_keys(self, caller: Caller, query: KeysQuery) -> Response:
        """Keys, as far as they are the caller's to see."""
        now = self._keys.now()
        keys = await self._admin.list(caller.principal)
        found = (key_shown(key, now) for key in keys if query.ended or not key.ended(now))
        return json_response(KeyList(tuple(found)))

    @route(
        "POST",
        "/v1/keys",
        _ADMIN,
        query=Nothing,
        body=NewKey,
        max_body=MAX_BODY,
        answers={201: KeyMade},
    )
    async def create_key(self, caller: Caller, body: NewKey) -> Response:
        """Create an API key; it is returned only once."""
        try:
            async with self._changing.turn(caller.principal.key_id):
                made = await self._admin.create(caller.principal, body)
        except ValueError as error:
            raise ApiProblem("malformed", str(error)) from None
        except KeyRefused as refusal:
            if refusal.prefix:
                raise forbidden(Scope.ADMIN, refusal.prefix) from None
            kind = "limit" if refusal.kind == "limit" else "forbidden"
            raise ApiProblem(kind, str(refusal)) from None
        return json_response(made, 201, (b"location", f"/v1/keys/{made.id}".encode()))

    @route(
        "DELETE", "/v1/keys/{word}", _ADMIN, query=Nothing, answers={200: KeyShown}, problems=(404,)
    )
    async def revoke_key(self, caller: Caller, word: str) -> Response:
        """Revoke an API key; it stops working within two seconds.

        Its tokens and streams end with it.
        """
        try:
            async with self._changing.turn(caller.principal.key_id):
                key = await self._admin.revoke(caller.principal, word)
        except UnknownKey:
            raise ApiProblem(
                "no-such-key", "no API key has this id, or you may not see it"
            ) from None
        return json_response(key_shown(key, self._keys.now()))

    @route("GET", "/v1/audit", _ADMIN, query=AuditQuery, answers={200: AuditPage})
    async def audit(self, caller: Caller, query: AuditQuery) -> Response:
        """The audit log, newest first; a page can be empty and not the last.

        An administrator of a directory sees the lines about that.
        """
        return json_response(await self._audit.page(caller.principal, query.before, query.limit))


# -- restrictions, placements and moves -------------------------------------------------------------

API = "Locks"
"""What can be restricted, in Seaplane's terms: only locks."""

MAX_DEADLINE = 30 * 86400.0
"""The longest time, in seconds, that a directory can drain."""

MAX_RESTRICTIONS = 100
"""Restrictions on a page."""


class RestrictionsQuery(Strict, frozen=True):
    """The first restriction of a page: `next_key` and `next_api` of the previous one."""

    from_: Annotated[str, Meta(max_length=1024)] | None = field(name="from", default=None)
    from_api: Annotated[str, Meta(max_length=64)] | None = None


class RestrictionShown(Struct, frozen=True):
    """A restriction."""

    api: str
    directory: str
    """Its bytes in URL-safe base64, without the slash at its end."""
    details: Rule
    state: Literal["Pending", "Enforced"]
    """Pending until nothing is left at a placement that is not allowed."""
    placement: str
    """The placement of the directory."""


class RestrictionPage(Struct, frozen=True):
    """Some restrictions, and the start of the next page: null after the last."""

    restrictions: tuple[RestrictionShown, ...]
    next_api: str | None
    next_key: str | None


type Drain = Annotated[float, Meta(gt=0, le=MAX_DEADLINE)]
"""Seconds that a directory refuses new acquires before the leases that remain in it are revoked."""


class RuleAndDeadline(Rule, frozen=True, forbid_unknown_fields=True):
    """A restriction, and the deadline of the moves that it forces."""

    deadline: Drain | None = DEADLINE
    """Null: directories move when they are idle, and nothing is refused or revoked."""


class Destination(Struct, frozen=True, forbid_unknown_fields=True):
    """The new placement of a directory, and the deadline of the move."""

    to: Annotated[str, Meta(min_length=1, max_length=256)]
    deadline: Drain | None = DEADLINE
    """Null: the directory moves when it is idle, and nothing is refused or revoked."""


class PlacementShown(Struct, frozen=True):
    """A store for directories. The first one is the default."""

    name: str
    provider: str
    region: str


class PlacementsShown(Struct, frozen=True):
    """All placements."""

    placements: tuple[PlacementShown, ...]


_ONE_RESTRICTION = "/v1/restrict/{word}/{dir}/"


@dataclass(eq=False)
class PlacementRoutes:
    """Restrictions of directories, and moves from one store to another."""

    _placements: PlacementAdmin
    _changing: FairQueue

    @route(
        "GET",
        _ONE_RESTRICTION,
        SEEING,
        query=Nothing,
        answers={200: RestrictionShown},
        problems=(404,),
    )
    async def restriction(self, caller: Caller, word: str, directory: bytes) -> Response:
        """A directory's restriction, and whether it is enforced."""
        if not caller.allowed or word.lower() != API.lower():
            raise _no_restriction()
        with placement_errors(_no_restriction()):
            return json_response(_restriction_shown(await self._placements.restriction(directory)))

    @route(
        "PUT",
        _ONE_RESTRICTION,
        on_path(Scope.ADMIN),
        query=Nothing,
        body=RuleAndDeadline,
        max_body=MAX_BODY,
        answers={200: Done},
        problems=(409, 413),
    )
    async def restrict(
        self, caller: Caller, word: str, directory: bytes, body: RuleAndDeadline
    ) -> Response:
        """Restrict a directory to regions and providers.

        Directories that must move because of it drain.
        """
        _check_api(word)
        try:
            with placement_errors():
                async with self._changing.turn(caller.principal.key_id):
                    await self._placements.restrict(
                        caller.principal, directory, body, body.deadline
                    )
        except ValueError as error:
            raise ApiProblem("malformed", str(error)) from None
        return done_response(caller.headers, "Ok")

    @route(
        "DELETE",
        _ONE_RESTRICTION,
        on_path(Scope.ADMIN),
        query=Nothing,
        answers={200: Done},
        problems=(404, 409),
    )
    async def unrestrict(self, caller: Caller, word: str, directory: bytes) -> Response:
        """Delete a restriction; what lives somewhere stays there."""
        _check_api(word)
        with placement_errors(_no_restriction()):
            async with self._changing.turn(caller.principal.key_id):
                await self._placements.unrestrict(caller.principal, directory)
        return done_response(caller.headers, "Ok")

    @route(
        "GET",
        ("/v1/restrict", "/v1/restrict/", "/v1/restrict/{word}", "/v1/restrict/{word}/"),
        SIGNED_IN,
        query=RestrictionsQuery,
        answers={200: RestrictionPage},
    )
    async def restrictions(self, caller: Caller, word: str, query: RestrictionsQuery) -> Response:
        """Restrictions that this API key has permission to read."""
        if word:
            _check_api(word)
        elif (query.from_ is None) != (query.from_api is None):
            raise ApiProblem("malformed", "give both `from` and `from_api`, or neither")
        start = b"" if query.from_ is None else _first_directory(query.from_)
        seen = [
            each
            for each in await self._placements.restrictions()
            if each.directory >= start and caller.principal.may(Scope.READ, each.directory)
        ]
        more = seen[MAX_RESTRICTIONS:]
        return json_response(
            RestrictionPage(
                tuple(map(_restriction_shown, seen[:MAX_RESTRICTIONS])),
                API if more else None,
                encoded(more[0].directory[:-1]) if more else None,
            )
        )

    @route("GET", "/v1/placements", _ADMIN, query=Nothing, answers={200: PlacementsShown})
    async def placements(self, _: Caller) -> Response:
        """The stores that directories may live in."""
        found = (
            PlacementShown(each.name, each.provider, each.region)
            for each in self._placements.places
        )
        return json_response(PlacementsShown(tuple(found)))

    @route(
        "PUT",
        "/v1/move",
        everywhere(Scope.ADMIN),
        summary="Move what lives in no directory to another store",
        query=Nothing,
        body=Destination,
        max_body=4096,
        answers={200: Done},
        problems=(409, 413),
    )
    @route(
        "PUT",
        "/v1/move/{dir}/",
        on_path(Scope.ADMIN),
        summary="Move a directory to another store",
        query=Nothing,
        body=Destination,
        max_body=4096,
        answers={200: Done},
        problems=(409, 413),
    )
    async def move(self, caller: Caller, directory: bytes, body: Destination) -> Response:
        """Have a directory move. Its holders go on until the deadline, and no lock is ever held twice."""
        with placement_errors():
            await self._placements.move(caller.principal, directory, body.to, body.deadline)
        return json_response(Done())

    @route(
        "GET",
        "/v1/move",
        everywhere(Scope.ADMIN),
        summary="Where names in no directory live, and how far their move is",
        query=Nothing,
        answers={200: Progress},
    )
    @route(
        "GET",
        "/v1/move/{dir}/",
        on_path(Scope.ADMIN),
        summary="Where a directory lives, and how far its move is",
        query=Nothing,
        answers={200: Progress},
    )
    async def progress(self, _: Caller, directory: bytes) -> Response:
        """The placement of a directory, and what is still in use at its former one."""
        return json_response(await self._placements.progress(directory))


@contextmanager
def placement_errors(unknown: ApiProblem | None = None) -> Generator[None]:
    """Convert placement errors to problems. `unknown` replaces the default 400 for unknown names."""
    try:
        yield
    except PlacementRefused as refusal:
        if refusal.kind == "unknown" and unknown is not None:
            raise unknown from None
        kind = "malformed" if refusal.kind == "unknown" else "limit"
        raise ApiProblem(kind, str(refusal)) from None
    except Unsatisfiable as error:
        raise ApiProblem("unsatisfiable", str(error)) from None
    except Conflict:
        raise ApiProblem("conflict", "another request changed it at the same time") from None


def _check_api(word: str) -> None:
    """Raises `ApiProblem` for what cannot be restricted."""
    if word.lower() != API.lower():
        detail = f"only {API} can be restricted: write {API.lower()} instead of {word!r}"
        raise ApiProblem("malformed", detail)


def _no_restriction() -> ApiProblem:
    return ApiProblem("no-such-restriction", "this directory has no restriction")


def _first_directory(text: str) -> bytes:
    try:
        return decoded(text.removeprefix(MARK)) + b"/"
    except ValueError:
        raise ApiProblem("malformed", "`from` must be `next_key` of the previous page") from None


def _restriction_shown(found: Restriction) -> RestrictionShown:
    directory = encoded(found.directory[:-1])
    return RestrictionShown(API, directory, found.rule, found.state, found.place)
