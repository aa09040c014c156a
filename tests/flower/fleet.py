"""A SuperLink's Fleet interface for one node, in memory: what a node says is recorded, and can be made to fail."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2

from wardround.flower.messages import Note, from_records, to_records

NODE = 77


class FakeSuperLink:
    """Serves orders; `failures` maps a call to HTTP statuses (0: hang up) that it gives before it works."""

    def __init__(self):
        self.orders, self.objects, self.replies, self.calls = [], {}, [], []
        self.failures, self.online, self.alive, self.uploads = {}, False, True, {}
        self.arrived = threading.Event()
        handler = type("Handler", (_Handler,), {"superlink": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    @property
    def address(self):
        return f"127.0.0.1:{self._server.server_address[1]}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def order(self, note, number=1, ttl=60.0, records=None):
        """Put an order into the queue, as a server app's Grid does."""
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        content = to_records(note) if records is None else records
        for identity, one in get_all_nested_objects(content).items():
            self.objects[identity] = one.deflate()
        tree = message_pb2.ObjectTree(object_id=f"order-{number}", children=[get_object_tree(content)])
        metadata = message_pb2.Metadata(
            run_id=5, message_id=f"order-{number}", src_node_id=1, dst_node_id=NODE, group_id="3", ttl=ttl,
            message_type="train", created_at=1_800_000_000.0,
        )  # fmt: skip
        self.orders.append((message_pb2.Message(metadata=metadata), tree))

    def answer(self, call, body):
        return getattr(self, call.replace("-", "_"))(body)

    def register_node(self, body):
        return fleet_pb2.RegisterNodeFleetResponse(node_id=NODE)

    def unregister_node(self, body):
        return fleet_pb2.UnregisterNodeFleetResponse()

    def activate_node(self, body):
        if self.online:
            return 409  # a node that is believed to be there
        self.online = True
        self.interval = fleet_pb2.ActivateNodeRequest.FromString(body).heartbeat_interval
        return fleet_pb2.ActivateNodeResponse(node_id=NODE)

    def deactivate_node(self, body):
        assert fleet_pb2.DeactivateNodeRequest.FromString(body).node_id == NODE
        self.online = False
        return fleet_pb2.DeactivateNodeResponse()

    def send_node_heartbeat(self, body):
        return heartbeat_pb2.SendNodeHeartbeatResponse(success=self.alive)

    def pull_messages(self, body):
        if not self.online:
            return 401
        if not self.orders:
            return fleet_pb2.PullMessagesResponse()
        message, tree = self.orders.pop(0)
        return fleet_pb2.PullMessagesResponse(messages_list=[message], message_object_trees=[tree])

    def pull_object(self, body):
        content = self.objects.get(message_pb2.PullObjectRequest.FromString(body).object_id)
        return message_pb2.PullObjectResponse(
            object_found=content is not None,
            object_available=content is not None,
            object_content=content or b"",
        )

    def confirm_message_received(self, body):
        return message_pb2.ConfirmMessageReceivedResponse()

    def push_messages(self, body):
        request = fleet_pb2.PushMessagesRequest.FromString(body)
        self.replies.append(request.messages_list[0])
        self.uploads = {}
        ids, pending = [], [request.message_object_trees[0]]
        while pending:
            tree = pending.pop()
            ids.append(tree.object_id)
            pending += tree.children
        self.expected = set(ids)
        return fleet_pb2.PushMessagesResponse(objects_to_push=ids, session_id="session")

    def push_object(self, body):
        request = message_pb2.PushObjectRequest.FromString(body)
        self.uploads[request.object_id] = request.object_content
        if set(self.uploads) == self.expected:
            self.arrived.set()
        return message_pb2.PushObjectResponse(stored=True)

    def reply(self):
        """The last reply as a server app reads it, by Flower's own functions."""
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        assert self.arrived.wait(120)
        self.arrived.clear()
        message = inflate_object_from_contents(self.replies[-1].metadata.message_id, dict(self.uploads))
        return message, Note() if message.has_error() else from_records(message.content)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        call = self.path.removeprefix("/v1/fleet/")
        self.superlink.calls.append(call)
        if self.superlink.failures.get(call):
            response = self.superlink.failures[call].pop(0)
            if response == 0:
                self.close_connection = True
                return
        else:
            response = self.superlink.answer(call, body)
        status = response if isinstance(response, int) else 200
        content = b'{"detail": "because"}' if isinstance(response, int) else response.SerializeToString()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format, *args):
        pass
