"""The page and its actions: policy, host names, token, quarantine and release."""

import json
from contextlib import contextmanager

import pytest
from starlette.testclient import TestClient

from wardround.live.access import Access
from wardround.live.application import LivePage
from wardround.runs.audit import verify
from wardround.runs.quarantine import quarantined

pytest.importorskip("starlette", reason="starlette is not installed (extra 'live')")


TOKEN = "correct horse battery staple"


@contextmanager
def client_of(roots, token=None, host="127.0.0.1", names=()):
    page = LivePage(roots, Access(host, token, names), 0)
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
        assert client.post("/login", data={"token": "wrong"}).status_code == 401
        assert not client.cookies
        entered = client.post("/login", data={"token": TOKEN})
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert TOKEN not in cookie
        assert client.get("/").status_code == 200
        client.cookies.clear()
        assert client.get("/", params={"token": TOKEN}).status_code == 303
        assert client.get("/api/runs").status_code == 200


@pytest.fixture
def federation(wait_for, tmp_path, growing):
    run = growing(federation=True).add(2)
    with client_of([tmp_path], TOKEN) as client:
        client.post("/login", data={"token": TOKEN})
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
