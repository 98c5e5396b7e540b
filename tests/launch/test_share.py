"""share: who may read the copy, what is refused, and that it goes when the server goes; the limits of a class."""

from __future__ import annotations

import asyncio
import grp
import json
import os
from dataclasses import asdict

import pytest

from workshop.errors import BadInput, WorkshopError
from workshop.launch import records, share
from workshop.launch.fairshare import FairShare
from workshop.launch.records import ServerRecord

GROUP = grp.getgrgid(os.getegid()).gr_name


@pytest.fixture
def server(workshop_home) -> ServerRecord:
    record = ServerRecord(name="big", url="http://10.1.2.3:8000/v1", model="m", api_key="secret", where="slurm",
                          host="elsewhere", job_id=None, state="ready", started=records.now())
    records.write(record)
    return record


@pytest.fixture
def class_folder(tmp_path):
    folder = tmp_path / "class"
    folder.mkdir(mode=0o755)
    for part in (folder, *folder.parents):       # pytest's own folders are closed to others
        if not part.stat().st_mode & 0o001 and part.stat().st_uid == os.geteuid():
            part.chmod(part.stat().st_mode | 0o001)
    return folder


def test_copy_is_the_groups_and_holds_what_connect_needs(server, class_folder, monkeypatch):
    path, notes = share.share("big", GROUP, class_folder)
    assert path.stat().st_mode & 0o777 == 0o640 and path.stat().st_gid == os.getegid()
    assert json.loads(path.read_text()) == asdict(server)
    assert any("without limits" in note for note in notes)
    monkeypatch.setenv("WORKSHOP_SHARED", str(class_folder))
    assert [record.name for record in records.shared()] == ["big"]


def test_copy_is_never_readable_by_others_while_it_is_written(server, class_folder, monkeypatch):
    seen = []
    replace = os.replace
    monkeypatch.setattr(share.os, "replace", lambda a, b: (seen.append(os.stat(a).st_mode & 0o777), replace(a, b)))
    monkeypatch.setattr(share.os, "fchown", lambda *args: seen.append(os.fstat(args[0]).st_mode & 0o777))
    share.share("big", GROUP, class_folder)
    assert seen[:2] == [0o600, 0o640], "closed until it belongs to the group"


def test_copies_go_when_the_server_goes(server, class_folder):
    path, _ = share.share("big", GROUP, class_folder)
    records.remove("big")
    assert not path.exists() and not list(records.path_of("big").parent.iterdir())


def test_withdraw_twice_does_no_harm(server, class_folder):
    share.share("big", GROUP, class_folder)
    assert len(share.withdraw("big")) == 1
    assert share.withdraw("big") == []


@pytest.mark.parametrize(("name", "group", "error", "words"), [
    ("small", GROUP, WorkshopError, "no server called 'small'"), ("big", "no-such-group", BadInput, "no group")])
def test_what_cannot_be_is_refused_with_the_choices(server, class_folder, name, group, error, words):
    with pytest.raises(error, match=words) as caught:
        share.share(name, group, class_folder)
    assert caught.value.remedy


def test_server_that_is_not_ready_is_not_shared(server, class_folder):
    records.write(ServerRecord(**{**asdict(server), "state": "starting"}))
    with pytest.raises(WorkshopError, match="is starting"):
        share.share("big", GROUP, class_folder)


def test_folder_that_the_group_may_not_enter_is_named(server, class_folder):
    closed = class_folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(WorkshopError, match=f"may not enter {closed}"):
        share.share("big", GROUP, closed)


def test_without_a_folder_it_says_where_to_set_one(server, monkeypatch):
    monkeypatch.delenv("WORKSHOP_SHARED", raising=False)
    with pytest.raises(BadInput, match="No folder"):
        share.share("big", GROUP)


# --- limits of a class

class Engine:
    """Stands behind the middleware: notes how many requests are inside at a time, and holds them until told."""

    def __init__(self):
        self.inside, self.most, self.bodies, self.go = {}, {}, [], asyncio.Event()

    async def __call__(self, scope, receive, send):
        who = dict(scope["headers"]).get(b"x-workshop-learner", b"?").decode()
        self.inside[who] = self.inside.get(who, 0) + 1
        self.most[who] = max(self.most.get(who, 0), self.inside[who])
        self.bodies.append((await receive()).get("body"))
        await self.go.wait()
        self.inside[who] -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def ask(app, who: str, body: dict | bytes, path: str = "/v1/completions") -> tuple[int, dict, bytes]:
    sent, given = [], False
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def receive():
        nonlocal given
        if given:
            return {"type": "http.disconnect"}
        given = True
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "POST", "path": path, "client": ("10.0.0.9", 1),
             "headers": [(b"x-workshop-learner", who.encode())]}
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def test_one_learners_many_requests_do_not_hold_up_another():
    async def story():
        engine = Engine()
        app = FairShare(engine)
        greedy = [asyncio.create_task(ask(app, "greedy", {"prompt": "x"})) for _ in range(20)]
        await asyncio.sleep(0.05)
        modest = asyncio.create_task(ask(app, "modest", {"prompt": "y"}))
        await asyncio.sleep(0.05)
        assert engine.inside == {"greedy": 4, "modest": 1}
        engine.go.set()
        answers = await asyncio.gather(modest, *greedy)
        assert {status for status, _, _ in answers} == {200} and len(engine.bodies) == 21
        assert engine.most == {"greedy": 4, "modest": 1}
        assert not app._inside and not app._slots, "nothing is remembered of who has gone"
    asyncio.run(story())


def test_queue_of_one_learner_has_an_end():
    async def story():
        engine = Engine()
        app = FairShare(engine)
        tasks = [asyncio.create_task(ask(app, "greedy", {})) for _ in range(70)]
        await asyncio.sleep(0.05)
        assert sum(task.done() and task.result()[0] == 429 for task in tasks) == 2    # 4 inside, 64 waiting
        engine.go.set()
        await asyncio.gather(*tasks)
    asyncio.run(story())


@pytest.mark.parametrize(("body", "status"), [
    ({"max_tokens": 1024}, 200), ({"max_tokens": 1025}, 400), ({"min_tokens": 9999}, 400),
    ({"max_completion_tokens": 5000}, 400), ({"n": 32}, 200), ({"n": 33}, 400), ({"prompt": ["a"] * 33}, 400),
    ({"prompt": ["a"] * 8, "n": 5}, 400), ({"prompt": [1] * 500}, 200), ({"prompt": [[1, 2]] * 33}, 400),
    (b"not json", 200), (b"[]", 200), ({"n": "many"}, 200)])
def test_single_request_may_not_fill_the_engine(body, status):
    async def story():
        engine = Engine()
        engine.go.set()
        got, headers, answer = await ask(FairShare(engine), "one", body)
        assert got == status and headers[b"x-workshop-limits"].startswith(b"4 requests at a time")
        if status == 200:
            assert engine.bodies == [body if isinstance(body, bytes) else json.dumps(body).encode()], "passed on whole"
        else:
            assert "in this class" in json.loads(answer)["error"]["message"] and not engine.bodies
    asyncio.run(story())


def test_limits_that_cannot_be_stop_the_server_at_its_start(monkeypatch):
    monkeypatch.setenv("WORKSHOP_PER_LEARNER", "none")
    with pytest.raises(ValueError, match="WORKSHOP_PER_LEARNER"):
        FairShare(None)
