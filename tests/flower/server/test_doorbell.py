"""Gateway and server app ring for each other; a ring that is lost costs time, not a message."""

import asyncio
import threading
import time

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.proto import fleet_pb2, message_pb2
from tests.flower.fleet import NODE, FakeSuperLink

from wardround.flower.messages import Note
from wardround.flower.server import doorbell as module
from wardround.flower.server.doorbell import Bell, Doorbell
from wardround.flower.server.gateway import Gateway
from wardround.flower.server.roster import identity_of_key

KEY = b"public key"
IDENTITY = identity_of_key(KEY)


class RunningGateway:
    """A gateway without keys before a SuperLink, in a thread; requests are made as its one node makes them."""

    def __init__(self, folder, superlink):
        self.path, self.loop = folder / "bell", asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.gateway = Gateway(f"http://{superlink.address}", None, None, self.path)
        self.wait(self.gateway.doorbell.listen(self.path))

    def wait(self, task, seconds=30):
        return asyncio.run_coroutine_threadsafe(task, self.loop).result(seconds)

    async def _request(self, call, message):
        transport = httpx.ASGITransport(app=self.gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            headers = {"flwr-public-key": "cHVibGljIGtleQ=="}
            content = message.SerializeToString()
            return await client.post(f"/v1/fleet/{call}", headers=headers, content=content, timeout=60)

    def send(self, call, message):
        return asyncio.run_coroutine_threadsafe(self._request(call, message), self.loop)

    async def _end(self):
        self.gateway.doorbell.close()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    def close(self):
        self.wait(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture
def superlink():
    link = FakeSuperLink()
    link.online = True
    yield link
    link.close()


@pytest.fixture
def gateway(tmp_path, superlink):
    running = RunningGateway(tmp_path, superlink)
    yield running
    running.close()


def connect(gateway):
    """A bell that the gateway knows of: what is said before it has taken up the connection goes to nobody."""
    bell = Bell(gateway.path)
    assert bell.works
    hear(bell, lambda: gateway.gateway.doorbell._listeners)
    return bell


def hear(bell, condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        bell.wait(0.5)
        bell.hear()


def test_a_question_for_orders_waits_until_there_are_some(gateway, superlink):
    pull = fleet_pb2.PullMessagesRequest()
    assert gateway.send("pull-messages", pull).result(30).status_code == 200, "the first one does not wait"
    waiting = gateway.send("pull-messages", pull)
    bell = Bell(gateway.path)
    bell.introduce(NODE, IDENTITY)
    bell.introduce(5, "key:another")
    bell.ring([5])
    with pytest.raises(TimeoutError):
        waiting.result(0.3)
    superlink.order(Note({"kind": "train"}))
    bell.ring([NODE])
    answer = fleet_pb2.PullMessagesResponse.FromString(waiting.result(30).content)
    assert answer.messages_list[0].metadata.message_id == "order-1"


def test_a_ring_that_came_too_early_is_not_lost(gateway, superlink):
    gateway.send("pull-messages", fleet_pb2.PullMessagesRequest()).result(30)
    bell = Bell(gateway.path)
    bell.introduce(NODE, IDENTITY)
    bell.ring([NODE])
    assert gateway.send("pull-messages", fleet_pb2.PullMessagesRequest()).result(10).status_code == 200


def test_without_a_ring_the_superlink_is_asked_after_a_while(monkeypatch):
    async def twice():
        bell = Doorbell()
        await bell.wait_for_orders("a", 60)
        begin = time.monotonic()
        await bell.wait_for_orders("a", 0.05)
        return time.monotonic() - begin

    assert 0.04 < asyncio.run(twice()) < 30
    assert module.HOLD_SECONDS < 30, "Flower's own nodes give up after 30 s"


@pytest.mark.slow
def test_an_answer_is_there_when_all_its_parts_are(gateway, superlink):
    bell = connect(gateway)
    metadata = message_pb2.Metadata(message_id="reply", reply_to_message_id="order-9")
    tree = message_pb2.ObjectTree(object_id="one", children=[message_pb2.ObjectTree(object_id="two")])
    push = fleet_pb2.PushMessagesRequest(
        messages_list=[message_pb2.Message(metadata=metadata)], message_object_trees=[tree]
    )
    gateway.send("push-messages", push).result(30)
    hear(bell, lambda: bell.rings.answering == {"order-9"})
    for part in ("one", "one"):  # twice the same part is one part
        gateway.send("push-object", message_pb2.PushObjectRequest(object_id=part)).result(30)
    bell.wait(0.2)
    assert bell.take_answered(["order-9"]) == set()
    gateway.send("push-object", message_pb2.PushObjectRequest(object_id="two")).result(30)
    hear(bell, lambda: bell.rings.answered == {"order-9"})
    assert bell.rings.answering == set()
    assert bell.take_answered(["other"]) == set()
    assert bell.take_answered(["order-9"]) == {"order-9"}
    assert bell.take_answered(["order-9"]) == set()


def test_an_order_for_all_is_fetched_once(gateway, superlink):
    superlink.objects["big"] = b"x" * 10_000
    superlink.objects["small"] = b"x"
    for name, times in (("big", 1), ("small", 3)):
        superlink.calls.clear()
        request = message_pb2.PullObjectRequest(run_id=5, object_id=name)
        answers = [gateway.send("pull-object", request).result(30) for _ in range(3)]
        assert {message_pb2.PullObjectResponse.FromString(a.content).object_content for a in answers} == {
            superlink.objects[name]
        }
        assert superlink.calls.count("pull-object") == times


def test_an_object_that_could_not_be_fetched_is_asked_for_again(gateway, superlink):
    superlink.objects["big"] = b"x" * 10_000
    superlink.failures["pull-object"] = [503, 503]
    request = message_pb2.PullObjectRequest(run_id=5, object_id="big")
    assert gateway.send("pull-object", request).result(30).status_code == 503
    assert gateway.send("pull-object", request).result(30).status_code == 200


def test_the_server_app_says_how_large_an_answer_may_be(gateway):
    bell = Bell(gateway.path)
    bell.limit(12345)
    hear(bell, lambda: gateway.gateway.largest_object == 12345)


def test_without_a_gateway_there_is_nothing_to_wait_for(tmp_path):
    naps = []
    for bell in (Bell(None, naps.append), Bell(tmp_path / "nobody", naps.append)):
        assert not bell.works
        bell.ring([1])
        bell.limit(5)
        bell.wait(0.25)
    assert naps == [0.25, 0.25]


def test_a_gateway_that_ends_is_no_error(gateway):
    bell = Bell(gateway.path)
    assert bell.works

    async def end():
        for writer in list(gateway.gateway.doorbell._listeners):
            writer.close()

    gateway.wait(end())
    bell.wait(0.5)
    bell.ring([1])
    assert bell.works, "it connects again"


@pytest.mark.slow
def test_nonsense_on_the_socket_ends_that_connection_alone(gateway):
    bad, good = Bell(gateway.path), Bell(gateway.path)
    assert bad.works
    assert good.works
    bad._socket.sendall(b"nonsense\n")
    good.limit(77)
    hear(good, lambda: gateway.gateway.largest_object == 77)
