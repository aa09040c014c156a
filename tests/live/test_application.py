"""The page and its actions: policy, host names, token, quarantine and release."""

import asyncio
import json
from contextlib import contextmanager

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from wardround.live.access import Access
from wardround.live.application import LivePage
from wardround.runs.audit import verify
from wardround.runs.quarantine import quarantined

pytest.importorskip("starlette", reason="starlette is not installed (extra 'live')")


TOKEN = "correct horse battery staple"
ORIGIN = {"origin": "http://127.0.0.1:8400"}  # a browser sends it with every form


@contextmanager
def client_of(roots, token=None, host="127.0.0.1", names=(), access=None):
    page = LivePage(roots, access or Access(host, token, names), 0)
    with TestClient(page.app, base_url="http://127.0.0.1:8400", follow_redirects=False) as client:
        yield client


def the_run(wait_for, client, headers=None):
    (run,) = wait_for(lambda: client.get("/api/runs", headers=headers).json())
    return run


def test_the_page_and_its_files_come_with_a_strict_policy(tmp_path):
    with client_of([tmp_path]) as client:
        page = client.get("/")
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "access-control-allow-origin" not in page.headers
        names = {part.split('"')[0] for part in page.text.split("/static/")[1:]}
        assert {"app.js", "live.css"} <= names
        for name in names:
            assert client.get(f"/static/{name}").status_code == 200
        assert "<script>" not in page.text
        assert "style=" not in page.text
        for wrong in ("..%2fserver.py", "index.html", "nothing.js", "../server.py"):
            assert client.get(f"/static/{wrong}").status_code == 404


def test_programs_get_the_list_of_runs(wait_for, tmp_path, growing):
    growing().add(2)
    with client_of([tmp_path]) as client:
        run = wait_for(lambda: [r for r in client.get("/api/runs").json() if r["round"] == 2])[0]
        assert run["name"] == "runs/run"
        assert run["metrics"] == {"auroc": 0.52}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8400", 200),
        ("localhost:1", 200),
        ("[::1]:8400", 200),
        ("attacker.example:8400", 421),
        ("192.0.2.7", 421),
        ("", 421),
    ],
)
def test_only_names_of_this_machine_are_answered(tmp_path, host, status):
    with client_of([tmp_path]) as client:
        assert client.get("/api/runs", headers={"host": host}).status_code == status


def test_a_name_can_be_allowed(tmp_path):
    with client_of([tmp_path], TOKEN, "0.0.0.0", ["watch.hospital.example"]) as client:
        assert client.get("/", headers={"host": "watch.hospital.example"}).status_code == 401
        assert client.get("/", headers={"host": "10.1.2.3:8400"}).status_code == 401
        assert client.get("/", headers={"host": "attacker.example"}).status_code == 421


def test_a_token_is_asked_for_and_kept_in_a_cookie(tmp_path):
    with client_of([tmp_path], TOKEN) as client:
        for path in ("/", "/events", "/api/runs", "/?token=wrong"):
            refused = client.get(path)
            assert refused.status_code == 401
            assert TOKEN not in refused.text
        assert client.get("/static/live.css").status_code == 200, "the form wears the page's clothes"
        assert client.get("/api/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/api/runs", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.post("/login", data={"token": "wrong"}, headers=ORIGIN).status_code == 401
        assert not client.cookies
        entered = client.post("/login", data={"token": TOKEN}, headers=ORIGIN)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert TOKEN not in cookie
        assert client.get("/").status_code == 200
        client.cookies.clear()
        assert client.get("/", params={"token": TOKEN}).status_code == 303
        assert client.get("/api/runs").status_code == 200


async def post_unread(page, **headers):
    """Post to /login; reading a byte of the body is an error. Gives status and headers of the answer."""
    method = headers.pop("method", "POST")
    scope = {
        "type": "http", "method": method, "path": "/login", "query_string": b"", "scheme": "http",
        "client": ("192.0.2.1", 1), "server": ("127.0.0.1", 8400), "http_version": "1.1", "root_path": "",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    sent = []

    async def receive():
        raise AssertionError("the body was read")

    async def send(message):
        sent.append(message)

    await page.app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


GOOD = {"host": "127.0.0.1:8400", "content_length": "10", "origin": "http://127.0.0.1:8400"}


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"host": "attacker.example"}, 421),
        ({"method": "PUT"}, 405),
        ({"method": "GET"}, 405),
        ({"origin": None}, 403),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[::"}, 403),
        ({"content_length": None, "transfer_encoding": "chunked"}, 411),
        ({"content_length": "10001"}, 413),
        ({"content_length": "9" * 5000}, 413),
        ({"content_length": "-1"}, 411),
    ],
)
def test_login_refuses_before_it_reads_a_body(tmp_path, changed, status):
    page = LivePage([tmp_path], Access("127.0.0.1", TOKEN), 0)
    headers = {name: value for name, value in {**GOOD, **changed}.items() if value is not None}
    answered, sent = asyncio.run(post_unread(page, **headers))
    assert answered == status
    assert sent[b"connection"] == b"close", "or the server reads on to find the next request"
    with pytest.raises(AssertionError, match="the body was read"):
        asyncio.run(post_unread(page, **GOOD))


def test_without_a_token_there_is_no_login(tmp_path):
    page = LivePage([tmp_path], Access("127.0.0.1", None), 0)
    assert asyncio.run(post_unread(page, **GOOD))[0] == 403


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("wardround.live.application.BODY_SECONDS", 0.05)
    page = LivePage([tmp_path], Access("127.0.0.1", TOKEN), 0)
    request = Request(
        {"type": "http", "method": "POST", "path": "/login", "headers": [], "client": ("192.0.2.1", 1)},
        receive=lambda: asyncio.sleep(60),
    )
    assert asyncio.run(asyncio.wait_for(page.login(request), 30)).status_code == 408


@pytest.mark.parametrize("way", ["form", "address", "header"])
def test_wrong_tokens_slow_down_whatever_way_they_come(tmp_path, way):
    access, now = Access("127.0.0.1", TOKEN), [1000.0]
    access.attempts.clock = lambda: now[0]
    with client_of([tmp_path], access=access) as client:

        def attempt(token):
            if way == "form":
                return client.post("/login", data={"token": token}, headers=ORIGIN)
            if way == "address":
                return client.get("/", params={"token": token})
            return client.get("/api/runs", headers={"authorization": f"Bearer {token}"})

        assert [attempt("wrong").status_code for _ in range(7)] == [401] * 6 + [429]
        refused = attempt(TOKEN)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        cookie = {"cookie": f"wardround_0={access.session}"}
        assert client.get("/api/runs", headers=cookie).status_code == 200, "who is in stays in"
        assert client.get("/", params={"token": "old"}, headers=cookie).status_code == 200
        assert client.get("/").status_code == 401, "the form is shown as before"
        now[0] += 1.0
        assert attempt("wrong").status_code == 401
        assert attempt("wrong").headers["retry-after"] == "2"
        now[0] += 2.0
        assert attempt(TOKEN).status_code in (200, 303)


def test_one_sources_wrong_tokens_do_not_slow_down_another():
    access = Access("0.0.0.0", TOKEN)
    for _ in range(9):
        access.attempts.fail("192.0.2.1")
    assert not access.is_token(TOKEN, "192.0.2.1")
    assert access.is_token(TOKEN, "192.0.2.2")


@pytest.fixture
def federation(wait_for, tmp_path, growing):
    run = growing(federation=True).add(2)
    with client_of([tmp_path], TOKEN) as client:
        client.post("/login", data={"token": TOKEN}, headers=ORIGIN)
        found = wait_for(lambda: [r for r in client.get("/api/runs").json() if r["federation"]])[0]
        yield client, f"/api/runs/{found['id']}", run.path


HEADER = {"x-wardround": "1"}


def test_quarantine_and_release_go_into_the_audit_log(wait_for, federation):
    client, address, folder = federation
    body = {"client": "client-1", "reason": "broken scanner"}
    done = client.post(f"{address}/quarantine", json=body, headers=HEADER)
    assert done.status_code == 200, done.text
    assert quarantined(folder) == {"client-1": "broken scanner"}
    wait_for(lambda: the_run(wait_for, client)["quarantined"] == {"client-1": "broken scanner"})
    again = client.post(f"{address}/quarantine", json=body, headers=HEADER)
    assert again.status_code == 409
    assert "already" in again.json()["error"]
    body["reason"] = "repaired"
    assert client.post(f"{address}/release", json=body, headers=HEADER).status_code == 200
    assert quarantined(folder) == {}
    assert verify(folder / "audit.jsonl") == 3
    events = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert [(e["event"], e.get("reason")) for e in events[1:]] == [
        ("quarantined", "broken scanner"),
        ("released", "repaired"),
    ]


def test_actions_need_a_reason_a_client_and_our_own_page(federation):
    client, address, folder = federation
    good = {"client": "client-1", "reason": "broken"}

    def status(body=good, headers=HEADER, action="quarantine", **more):
        return client.post(f"{address}/{action}", json=body, headers=headers, **more).status_code

    assert status({"client": "client-1", "reason": "  "}) == 400
    assert status({"client": "client-1"}) == 400
    assert status({"client": ["client-1"], "reason": "x"}) == 400
    assert status({"client": "client-1", "reason": "two\nlines"}) == 400
    assert status({"client": "client-1", "reason": "x" * 401}) == 400
    assert status({"client": "nobody", "reason": "x"}) == 404
    assert status(action="remove") == 404
    assert status(headers={}) == 403, "a form of another site cannot set the header"
    assert status(headers={**HEADER, "origin": "http://attacker.example"}) == 403
    assert status(headers={**HEADER, "origin": "null"}) == 403
    assert status(headers={**HEADER, "origin": "http://127.0.0.1:8400", "content-type": "text/plain"}) == 400
    assert client.get(f"{address}/quarantine").status_code == 405
    client.cookies.clear()
    assert status() == 401
    assert quarantined(folder) == {}


def test_without_a_token_nothing_can_be_changed(wait_for, tmp_path, growing):
    run = growing(federation=True).add(1)
    with client_of([tmp_path]) as client:
        found = the_run(wait_for, client)
        refused = client.post(
            f"/api/runs/{found['id']}/quarantine", json={"client": "client-1", "reason": "x"}, headers=HEADER
        )
        assert refused.status_code == 403
        assert "--token" in refused.json()["error"]
    assert quarantined(run.path) == {}


def test_a_running_simulation_has_actions_and_a_finished_run_has_none(wait_for, tmp_path, growing):
    run = growing().add(1)
    with client_of([tmp_path], TOKEN) as client:
        bearer = {"authorization": f"Bearer {TOKEN}", **HEADER}
        found = the_run(wait_for, client, bearer)
        address = f"/api/runs/{found['id']}"
        body = {"client": "client-1", "reason": "x"}
        assert client.post(f"{address}/quarantine", json=body, headers=bearer).status_code == 200
        assert quarantined(run.path) == {"client-1": "x"}
        run.finish()
        refused = client.post(f"{address}/release", json=body, headers=bearer)
        assert refused.status_code == 409
        assert "this run is finished" in refused.json()["error"]
    assert quarantined(run.path) == {"client-1": "x"}


def test_prometheus_gets_federations_and_what_is_running(wait_for, tmp_path, growing):
    parser = pytest.importorskip("prometheus_client.parser")
    run = growing()
    run.add(2)
    with client_of([tmp_path], TOKEN) as client:
        assert client.get("/metrics").status_code == 401
        bearer = {"authorization": f"Bearer {TOKEN}"}
        the_run(wait_for, client, bearer)
        answer = client.get("/metrics", headers=bearer)
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {one.name: one for one in parser.text_string_to_metric_families(answer.text)}
        assert families["wardround_round"].samples[0].value == 2
        run.add(1)
        again = client.get("/metrics", headers=bearer).text
        assert 'wardround_round{run="run"} 3' in again
