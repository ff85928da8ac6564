"""The engine behind an OpenAI-compatible server, against transports that play one."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import pickle
import threading
import time
import warnings
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from PIL import Image

from mdiff_adapters.engines import DecodeConfig, EngineSpec, Request, open_engine
from mdiff_adapters.engines.http import EngineWarning, HttpEngine, HttpOptions, map_error
from mdiff_adapters.errors import (
    ConfigError,
    EngineError,
    EngineTimeoutError,
    EngineUnavailableError,
)

PIXEL = Image.new("RGB", (30, 20), (10, 20, 30))
MODELS = {"object": "list", "data": [{"id": "mineru-diffusion", "object": "model"}]}


def completion(text: str, reason: str = "stop", tokens: int = 7) -> httpx.Response:
    return httpx.Response(
        200,
        json={
            "choices": [{"message": {"role": "assistant", "content": text},
                         "finish_reason": reason}],
            "usage": {"completion_tokens": tokens},
        },
    )  # fmt: skip


class Server:
    """Plays a server: keeps the bodies it got and answers by a function."""

    def __init__(
        self, reply: Callable[[dict[str, Any]], httpx.Response], models: Any = MODELS
    ) -> None:
        self.reply, self.models = reply, models
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[httpx.Headers] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.headers.append(request.headers)
        if request.url.path == "/v1/models":
            if isinstance(self.models, httpx.Response):
                return self.models
            return httpx.Response(200, json=self.models)
        assert request.url.path == "/v1/chat/completions"
        body = json.loads(request.content)
        self.bodies.append(body)
        return self.reply(body)

    def engine(self, url: str = "http://server:30000", **options: Any) -> HttpEngine:
        options = {"backoff_s": 0.0, **options}
        return HttpEngine(url, HttpOptions(**options), transport=httpx.MockTransport(self.__call__))


def test_the_request_is_image_first_png_with_special_tokens_kept() -> None:
    server = Server(lambda body: completion("hello<|im_end|>trailing"))
    with server.engine() as engine:
        [answer] = engine.answer([Request(id="a", image=PIXEL.convert("RGBA"), task="text")])
    assert (answer.text, answer.finish_reason, answer.num_tokens) == ("hello", "stop", 7)
    [body] = server.bodies
    system, user = body["messages"]
    assert system == {"role": "system", "content": "You are a helpful assistant."}
    image, text = user["content"]
    assert text == {"type": "text", "text": "\nText Recognition:"}
    head, _, data = image["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    sent = Image.open(io.BytesIO(base64.b64decode(data)))
    assert (sent.format, sent.mode, sent.size) == ("PNG", "RGB", (30, 20))
    assert sent.getpixel((0, 0)) == (10, 20, 30)
    assert body["skip_special_tokens"] is False
    assert (body["model"], body["max_tokens"], body["temperature"]) == (
        "mineru-diffusion", 1024, 0.0,
    )  # fmt: skip
    assert "top_p" not in body and "mdiff" not in body


@pytest.mark.parametrize(
    "url", ["http://s:1", "http://s:1/", "http://s:1/v1", "http://s:1/v1/chat/completions"]
)
def test_any_form_of_the_address_works(url: str) -> None:
    server = Server(lambda body: completion("x"))
    with server.engine(url) as engine:
        assert next(engine.answer([Request(id="a", image=PIXEL)])).text == "x"
        assert engine.name == url


def test_sampling_settings_go_over_the_wire_and_the_others_warn_once() -> None:
    server = Server(lambda body: completion("x"))
    decode = DecodeConfig(temperature=0.7, top_p=0.9, top_k=5, seed=3, max_tokens=11, threshold=0.5)
    with server.engine() as engine:
        with pytest.warns(EngineWarning, match="threshold cannot be set") as seen:
            list(engine.answer([Request(id=str(i), image=PIXEL, decode=decode) for i in range(3)]))
        assert len(seen) == 1
        assert seen[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(engine.answer([Request(id="b", image=PIXEL, decode=decode)]))
    body = server.bodies[0]
    assert [body[k] for k in ("temperature", "top_p", "top_k", "seed", "max_tokens")] == [
        0.7, 0.9, 5, 3, 11,
    ]  # fmt: skip


def test_a_server_that_describes_its_model_is_believed_and_gets_all_settings() -> None:
    described = {"tasks": ["text"], "text_unit": "segment", "segment_px": [896, 28],
                 "stretch": 2.4}  # fmt: skip
    server = Server(lambda body: completion("x"), {"data": [{"id": "tiny", "mdiff": described}]})
    with server.engine() as engine:
        assert engine.capabilities.segment_px == (896, 28)
        refused, answered = sorted(
            engine.answer([
                Request(id="a", image=PIXEL, task="table"),
                Request(id="b", image=PIXEL, decode=DecodeConfig(threshold=0.5)),
            ]),
            key=lambda answer: answer.id,
        )  # fmt: skip
    assert "not among its tasks" in str(refused.error)
    assert answered.text == "x"
    assert server.bodies[0]["mdiff"]["threshold"] == 0.5


def test_an_overloaded_server_is_waited_for() -> None:
    replies = iter([
        httpx.Response(429, headers={"retry-after": "0"}), httpx.Response(503), completion("x"),
    ])  # fmt: skip
    server = Server(lambda body: next(replies))
    with server.engine() as engine:
        assert next(engine.answer([Request(id="a", image=PIXEL)])).text == "x"
    assert len(server.bodies) == 3


def test_a_server_that_stays_overloaded_is_an_error_of_that_request() -> None:
    server = Server(lambda body: httpx.Response(503, text="busy"))
    with server.engine(retries=2) as engine:
        [answer] = engine.answer([Request(id="a", image=PIXEL)])
    assert len(server.bodies) == 3
    assert isinstance(answer.error, EngineUnavailableError)
    assert "503: busy" in str(answer.error) and "overloaded" in str(answer.error)


def test_one_bad_request_does_not_touch_its_neighbours() -> None:
    server = Server(
        lambda body: (
            httpx.Response(400, text="image too large")
            if body["max_tokens"] == 13
            else completion("x")
        )
    )
    requests = [
        Request(id="bad", image=PIXEL, decode=DecodeConfig(max_tokens=13)),
        Request(id="good", image=PIXEL),
        Request(id="no image", image="picture.png"),  # type: ignore[arg-type]
    ]
    with server.engine() as engine:
        answers = {answer.id: answer for answer in engine.answer(requests)}
    assert answers["good"].text == "x"
    assert "image too large" in str(answers["bad"].error)
    assert answers["bad"].finish_reason == answers["no image"].finish_reason == "error"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (httpx.Response(200, text="<html>"), "not JSON"),
        (httpx.Response(200, json={"choices": []}), "not a chat completion"),
        (httpx.Response(200, json=[1]), "not a chat completion"),
        (completion("x", reason="content_filter"), "content_filter"),
        (httpx.Response(401, text="no"), "MDIFF_API_KEY"),
        (httpx.Response(404, text="unknown model"), "--dllm-algorithm"),
        (
            httpx.Response(308, headers={"location": "https://new.example/v1"}),
            "answered 308: it has moved to 'https://new.example/v1'",
        ),
    ],
)
def test_odd_replies_say_what_to_do(reply: httpx.Response, expected: str) -> None:
    with Server(lambda body: reply).engine() as engine:
        [answer] = engine.answer([Request(id="a", image=PIXEL)])
    assert isinstance(answer.error, EngineError)
    assert expected in str(answer.error)
    assert answer.error.adapter == "http://server:30000"


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (r"half \ud83d", "half \ufffd"),
        (r"\ude00 half", "\ufffd half"),
        (r"twice \ud83d\ud83d\ude00", "twice \ufffd\U0001f600"),
        (r"whole \ud83d\ude00", "whole \U0001f600"),
    ],
)
def test_half_of_a_surrogate_pair_becomes_a_replacement_character(sent: str, text: str) -> None:
    reply = completion("TEXT").text.replace("TEXT", sent)
    server = Server(lambda body: httpx.Response(200, text=reply))
    with server.engine() as engine:
        [answer] = engine.answer([Request(id="a", image=PIXEL)])
    assert answer.text == text


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [("", "stop", "empty"), (" <|im_end|>", "stop", "empty"), ("x", "length", "length")],
)
def test_finish_reasons(text: str, reason: str, expected: str) -> None:
    with Server(lambda body: completion(text, reason)).engine() as engine:
        [answer] = engine.answer([Request(id="a", image=PIXEL)])
    assert (answer.finish_reason, answer.error) == (expected, None)


def test_requests_are_pulled_as_slots_free_and_never_more_run_at_once() -> None:
    running, peak, lock = 0, 0, threading.Lock()
    pulled: list[int] = []
    full = threading.Barrier(3)

    def reply(body: dict[str, Any]) -> httpx.Response:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        full.wait(60)  # nobody is answered before all slots are taken
        with lock:
            running -= 1
        return completion("x")

    def requests() -> Any:
        for i in range(21):
            pulled.append(i)
            yield Request(id=str(i), image=PIXEL)

    with Server(reply).engine(concurrency=3) as engine:
        answers = engine.answer(requests())
        next(answers)
        assert len(pulled) == 3
        assert len(list(answers)) == 20
    assert peak == 3


def test_a_key_is_sent_and_never_shown(monkeypatch) -> None:
    server = Server(lambda body: completion("x"))
    with server.engine(api_key="secret"):
        pass
    monkeypatch.setenv("MDIFF_API_KEY", "from env")
    with server.engine():
        pass
    assert [h["authorization"] for h in server.headers] == ["Bearer secret", "Bearer from env"]
    assert "secret" not in repr(HttpOptions(api_key="secret"))
    assert "secret" not in str(EngineSpec.parse("http://s", api_key="secret"))


# -- the probe ---------------------------------------------------------------------------------


def test_the_wrong_model_is_refused_with_the_list_and_the_fix() -> None:
    server = Server(lambda body: completion("x"))
    with pytest.raises(EngineUnavailableError, match=r"model 'other'.*lists: mineru-diffusion"):
        server.engine(model="other")


def test_several_models_need_a_choice() -> None:
    server = Server(lambda body: completion("x"), {"data": [{"id": "a"}, {"id": "b"}]})
    with pytest.raises(EngineUnavailableError, match=r"lists: a, b.*model="):
        server.engine()
    with server.engine(model="b") as engine:
        assert engine.model == "b"


def test_no_models_names_the_sglang_build_that_is_needed() -> None:
    server = Server(lambda body: completion("x"), {"data": []})
    with pytest.raises(EngineUnavailableError, match=r"lists: none.*stock 0\.5 refuses"):
        server.engine()


def test_a_gateway_without_a_model_list_is_fine_with_a_named_model() -> None:
    server = Server(lambda body: completion("x"), httpx.Response(404))
    with server.engine(model="m") as engine:
        assert next(engine.answer([Request(id="a", image=PIXEL)])).text == "x"
    with pytest.raises(EngineUnavailableError, match="404"):
        server.engine()


def test_something_that_is_no_such_server() -> None:
    with pytest.raises(EngineUnavailableError, match="not in OpenAI's format"):
        Server(lambda body: completion("x"), {"hello": 1}).engine()


def test_no_server_names_the_address_and_how_to_start_one() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(EngineUnavailableError, match=r"http://s:1/v1.*sglang serve"):
        HttpEngine(
            "http://s:1", HttpOptions(retries=1, backoff_s=0.0),
            transport=httpx.MockTransport(refuse),
        )  # fmt: skip


def test_an_unreachable_host_is_not_called_slow() -> None:
    def time_out(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("timed out", request=request)

    with pytest.raises(EngineTimeoutError, match="cannot be reached") as caught:
        HttpEngine("http://s:1", transport=httpx.MockTransport(time_out))
    assert "10 s" in str(caught.value)
    assert "300 s" not in str(caught.value) and "timeout_s" not in str(caught.value)


# -- the border --------------------------------------------------------------------------------


def _all_httpx_errors() -> list[type[Exception]]:
    roots: list[type[Exception]] = [httpx.HTTPError, httpx.InvalidURL, httpx.StreamError]
    found = []
    while roots:
        kind = roots.pop()
        found.append(kind)
        roots += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.startswith("httpx")]


@pytest.mark.parametrize("kind", _all_httpx_errors(), ids=lambda kind: kind.__name__)
def test_no_exception_of_httpx_passes_the_border(kind: type[Exception]) -> None:
    """A new httpx with a new exception fails here, not in somebody's pipeline."""
    if kind is httpx.HTTPStatusError:
        request = httpx.Request("GET", "http://s")
        error = kind("x", request=request, response=httpx.Response(500))  # type: ignore[call-arg]
    else:
        try:
            error = kind("x")
        except TypeError:
            error = kind()

    def fail(body: dict[str, Any]) -> httpx.Response:
        raise error

    with Server(fail).engine(retries=0) as engine:
        [answer] = engine.answer([Request(id="a", image=PIXEL)])
    assert isinstance(answer.error, EngineError)
    timeout = issubclass(kind, httpx.TimeoutException)
    assert answer.finish_reason == ("timeout" if timeout else "error")
    assert isinstance(map_error(error, 1.0), EngineTimeoutError) == timeout


def test_without_httpx_the_pip_line_is_given(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(ImportError, match=r'pip install "mdiff-adapters\[http\]"'):
        HttpEngine("http://s")


def test_bad_options_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no option 'time_out'.*'timeout_s'"):
        open_engine("http://s", time_out=3)
    with pytest.raises(ConfigError, match="concurrency = 0"):
        HttpOptions(concurrency=0)


def test_closed_engines_refuse() -> None:
    engine = Server(lambda body: completion("x")).engine()
    engine.close()
    assert engine.closed
    with pytest.raises(EngineError, match="closed"):
        engine.answer([])


def test_closing_between_two_answers_is_an_engine_error() -> None:
    engine = Server(lambda body: completion("x")).engine(concurrency=2)
    answers = engine.answer(Request(id=str(i), image=PIXEL) for i in range(8))
    assert next(answers).text == "x"
    engine.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        list(answers)


def test_closing_in_another_thread_ends_all_who_wait() -> None:
    """Those too whose requests still wait for a thread of the pool."""
    asked, release = threading.Event(), threading.Event()

    def reply(body: dict[str, Any]) -> httpx.Response:
        asked.set()
        release.wait(60)
        return completion("late")

    engine = Server(reply).engine(concurrency=1)
    outcomes: list[Any] = []

    def ask() -> None:
        try:
            outcomes.extend(engine.answer([Request(id="a", image=PIXEL)]))
        except Exception as error:  # noqa: BLE001  whatever it is, it is the outcome
            outcomes.append(error)

    callers = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
    for caller in callers:
        caller.start()
    assert asked.wait(60)
    while engine._pool._work_queue.qsize() < 2:
        time.sleep(0.01)
    engine.close()
    release.set()
    for caller in callers:
        caller.join(20)
    assert not any(caller.is_alive() for caller in callers)
    assert len(outcomes) == 3
    # The one under way came back all the same, or was broken off.
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert len(errors) >= 2
    assert all(isinstance(e, EngineError) and "the engine is closed" in str(e) for e in errors)


def test_over_a_real_socket_with_a_timeout_and_by_its_spec() -> None:
    class Handler(BaseHTTPRequestHandler):
        def _send(self, payload: Any) -> None:
            data = json.dumps(payload).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # of the caller that did not wait
                self.wfile.write(data)

        def do_GET(self) -> None:
            self._send(MODELS)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if body["max_tokens"] == 13:
                release.wait(60)
            self._send(completion("over the wire").json())

        def log_message(self, *args: Any) -> None:
            pass

    release = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        engine = open_engine(address, timeout_s=1.5, retries=0)
        assert pickle.loads(pickle.dumps(engine)) is engine
        requests = [
            Request(id="slow", image=PIXEL, decode=DecodeConfig(max_tokens=13)),
            Request(id="fast", image=PIXEL),
        ]
        answers = {answer.id: answer for answer in engine.answer(requests)}
        assert answers["fast"].text == "over the wire"
        assert answers["slow"].finish_reason == "timeout"
        assert isinstance(answers["slow"].error, EngineTimeoutError)
        assert "1.5 s" in str(answers["slow"].error)
        engine.close()
    finally:
        release.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
