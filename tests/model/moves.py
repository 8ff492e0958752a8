"""The small changes to a state of which all steps are made."""

from tests.model.world import LONG_AGO, Client, Message, State


def id_of(i: int, client: Client) -> str:
    return f"{'ABC'[i]}{client.born}"


def with_client(state: State, i: int, client: Client) -> State:
    return state._replace(clients=(*state.clients[:i], client, *state.clients[i + 1 :]))


def posted(state: State, message: Message) -> State:
    return state._replace(net=tuple(sorted((*state.net, message))))


def taken(state: State, message: Message) -> State:
    net = list(state.net)
    net.remove(message)
    return state._replace(net=tuple(net))


def wants(state: State, push: Message) -> bool:
    client = state.clients[push[1]]
    return push[2] == id_of(push[1], client) and client.mode in ("asking", "queued")


def lost(client: Client) -> Client:
    """What is left to a client of a lease that it no longer believes in: a paused one may still write."""
    born, asked, answered = client.born, client.asked, client.answered
    return Client(born, "lost", None, 0, asked, answered, token=client.token)


def a_tick_later(client: Client, ticks: int) -> Client:
    left = max(client.left - ticks, 0)
    trip = client.trip
    if trip is not None:
        own, answered = trip[0] + ticks, None if trip[1] is None else trip[1] + 1
        trip = (own, answered) if max(own, answered or 0) < LONG_AGO else None
    sent = min(client.sent + ticks, LONG_AGO) if client.call is not None else 0
    if client.mode == "held" and left == 0:  # past its deadline a lease is lost, for good
        return lost(client)
    return client._replace(left=left, trip=trip, sent=sent)


def message_a_tick_later(message: Message) -> Message:
    if message[0] == "p":
        return (*message[:-1], min(message[-1] + 1, LONG_AGO))
    if message[0] == "r" and message[2][0] == "queued":
        return (*message[:2], ("queued", min(message[2][1] + 1, LONG_AGO)))
    return message
