"""The engine behind an OpenAI-compatible server: SGLang, vLLM-like servers, or our own ``serve``.

A plain ``/v1/chat/completions`` call a request, image first, in a few threads; httpx is imported
when the engine is built (extra ``http``). Foreign exceptions end here.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import random
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from mdiff_adapters.config import server_api_key
from mdiff_adapters.engines.answers import failed, unsupported
from mdiff_adapters.engines.base import Answer, Capabilities, DecodeConfig, Request, Task
from mdiff_adapters.engines.shared import SpecEngine
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.errors import (
    ConfigError,
    EngineError,
    EngineTimeoutError,
    EngineUnavailableError,
    MDiffError,
)
from mdiff_adapters.text import cut_at_stop
from mdiff_core.config import strict_from_dict
from mdiff_core.protocol import SYSTEM_PROMPT, TASK_PROMPTS

if TYPE_CHECKING:
    import httpx
    from PIL import Image

RETRY_STATUS = (429, 502, 503, 504)
"""Answers of an overloaded or restarting server: worth waiting for."""
CONNECT_S = 10.0
"""Seconds in which a server that is there takes a connection, however long its answers take."""

# A server decodes with its own algorithm; over the wire go only the fields of the protocol.
_NOT_SENT = (
    "threshold", "block_length", "denoising_steps", "rule", "ignore_end", "factor", "entropy_bound",
)  # fmt: skip

_LAUNCH = (
    "SGLang needs a build that knows MinerUDiffusionForConditionalGeneration (stock 0.5 refuses "
    "it): sglang serve --model-path opendatalab/MinerU-Diffusion-V1-0320-2.5B "
    "--dllm-algorithm LowConfidence --max-running-requests 32"
)


class EngineWarning(UserWarning):
    """An engine cannot honour a setting; the answers come without it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Options of an ``http(s)://`` engine.

    Attributes:
        model: Model name at the server; None takes the only one it lists.
        api_key: Bearer token; None takes ``MDIFF_API_KEY`` from the environment.
        timeout_s: Seconds one request may take, queueing at the server included.
        concurrency: Requests in flight; servers batch what is in flight.
        retries: Further tries after a 429, 502, 503, 504 or a refused connection.
        backoff_s: Seconds before the first further try; doubled each time, at most 30.
        tasks: Tasks to ask for; None takes what the server says, else all four.
    """

    model: str | None = None
    api_key: str | None = dataclasses.field(default=None, repr=False)
    timeout_s: float = 300.0
    concurrency: int = 16
    retries: int = 4
    backoff_s: float = 0.5
    tasks: tuple[Task, ...] | None = None

    def __post_init__(self) -> None:
        for name, ok, allowed in (
            ("timeout_s", self.timeout_s > 0, "> 0"),
            ("concurrency", 1 <= self.concurrency <= 1024, "[1, 1024]"),
            ("retries", self.retries >= 0, ">= 0"),
            ("backoff_s", self.backoff_s >= 0, ">= 0"),
        ):
            if not ok:
                raise ConfigError(
                    f"HttpOptions.{name} = {getattr(self, name)!r} is out of range",
                    hint=f"allowed: {allowed}",
                )


class HttpEngine(SpecEngine):
    """Answers through an OpenAI-compatible server.

    The server is asked for its models when the engine is built, so that a wrong address, key or
    model is one clear error and not one a request. A server that describes a model with an
    ``"mdiff"`` object (as in a checkpoint's ``config.json``) is taken at its word on tasks and
    unit, and gets the decoding settings in the same place of a request.

    Args:
        base_url: ``http://host:port``, with or without ``/v1``.
        options: See :class:`HttpOptions`.
        spec: The spec it stands for; its name, and what it pickles as.
        transport: An ``httpx`` transport, for tests and proxies.

    Raises:
        ImportError: If httpx is not installed.
        EngineUnavailableError: If no server answers, or it does not serve the model.
        EngineTimeoutError: If the server does not answer in time.
    """

    def __init__(
        self,
        base_url: str,
        options: HttpOptions | None = None,
        *,
        spec: EngineSpec | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ImportError(
                'engine http:// needs httpx: pip install "mdiff-adapters[http]"', name="httpx"
            ) from error
        super().__init__(spec or EngineSpec(base_url))
        self._options = options or HttpOptions()
        self._url = _api_root(base_url)
        self._warned: set[str] = set()
        self._gate = threading.Lock()
        key = self._options.api_key or server_api_key()
        limit = self._options.concurrency
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(self._options.timeout_s, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=limit, max_keepalive_connections=limit),
            transport=transport,
        )
        self._pool = ThreadPoolExecutor(limit, thread_name_prefix="mdiff-http")
        try:
            self._model, self._capabilities, self._takes_decode = self._probe()
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> Self:
        """Open the server of ``spec``; its options are those of :class:`HttpOptions`."""
        return cls(spec.target, strict_from_dict(HttpOptions, dict(spec.options)), spec=spec)

    @property
    def model(self) -> str:
        """Name of the model at the server."""
        return self._model

    @property
    def capabilities(self) -> Capabilities:
        """What the server says it can do; all four tasks where it says nothing."""
        return self._capabilities

    def answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield one answer a request, in the order of completion.

        Args:
            requests: Pulled in the calling thread, ``concurrency`` ahead.

        Returns:
            A lazy iterator; closing it sends nothing more.

        Raises:
            EngineError: If the engine is closed, from the iterator too: while requests are left.
        """
        self._check_open()
        return self._answer(requests)

    def _answer(self, requests: Iterable[Request]) -> Iterator[Answer]:
        running: set[Future[Answer]] = set()
        source = iter(requests)
        try:
            while True:
                while len(running) < self._options.concurrency:
                    request = next(source, None)
                    if request is None:
                        break
                    refusal = unsupported(request, self)
                    if refusal is not None:
                        yield refusal
                        continue
                    self._warn_once(request.decode)
                    running.add(self._submit(request))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            for future in running:
                future.cancel()

    def _submit(self, request: Request) -> Future[Answer]:
        try:
            return self._pool.submit(self._ask, request)
        except RuntimeError as error:
            # Closed since the last request, by who takes the answers or in another thread.
            self._check_open()
            raise EngineError(f"no request can be sent: {error}", adapter=self.name) from error

    def _ask(self, request: Request) -> Answer:
        try:
            self._check_open()  # it may have waited for a thread until after the end
            response = self._send("POST", "/chat/completions", self._body(request))
            return _to_answer(request, _read(response))
        except Exception as error:  # noqa: BLE001  one bad request is an answer, not an exception
            if self._closed:
                # Whatever broke in a connection that was closed under it, that is the reason.
                return failed(request.id, self._closed_error())
            if isinstance(error, MDiffError):
                error.adapter = error.adapter or self.name
            return failed(request.id, error)

    def _body(self, request: Request) -> dict[str, Any]:
        decode = request.decode
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": SYSTEM_PROMPT},
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": _data_uri(request.image)}},
                        {"type": "text", "text": TASK_PROMPTS[request.task]},
                    ],
                },
            ],
            "max_tokens": decode.max_tokens or self._capabilities.limit(request.task),
            "temperature": decode.temperature,
            # The default of the protocol drops <|box_start|> and the table tokens.
            "skip_special_tokens": False,
        }
        if decode.temperature > 0:
            body.update(top_p=decode.top_p, top_k=decode.top_k or -1, seed=decode.seed or 0)
        if self._takes_decode:
            body["mdiff"] = {**dataclasses.asdict(decode), "task": request.task}
        return body

    def _warn_once(self, decode: DecodeConfig) -> None:
        if self._takes_decode:
            return
        default = DecodeConfig()
        with self._gate:
            names = [n for n in _NOT_SENT if getattr(decode, n) != getattr(default, n)]
            new = [name for name in names if name not in self._warned]
            self._warned.update(new)
        if new:
            warnings.warn(
                f"{self.name}: {', '.join(new)} cannot be set over this server's protocol and "
                "is ignored; set it where the server is started "
                "(SGLang: --dllm-algorithm-config FILE)",
                EngineWarning,
                stacklevel=3,
            )

    def _probe(self) -> tuple[str, Capabilities, bool]:
        """Ask which models there are; return the one to use and what it can do."""
        options = self._options
        tasks: dict[str, Any] = {} if options.tasks is None else {"tasks": options.tasks}
        response = self._send("GET", "/models")
        if response.status_code == 404 and options.model is not None:
            # Some gateways serve completions only; the first request will tell.
            return options.model, Capabilities(**tasks), False
        reply = _read(response)
        models = {entry["id"]: entry for entry in _entries(reply)}
        model = options.model or (next(iter(models)) if len(models) == 1 else None)
        if model is None or model not in models:
            known = ", ".join(models) or "none"
            asked = f"model {model!r}" if model else "one model"
            raise EngineUnavailableError(
                f"the server does not offer {asked}; it lists: {known}",
                hint=f"choose with model=...; {_LAUNCH}" if models else _LAUNCH,
                adapter=self.name,
            )
        described = models[model].get("mdiff")
        if not isinstance(described, dict):
            return model, Capabilities(**tasks), False
        return model, strict_from_dict(Capabilities, {**described, **tasks}), True

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Send one request and wait out a server that is overloaded or restarting."""
        import httpx

        options = self._options
        attempt = 0
        while True:
            last = attempt == options.retries
            retry_after: str | None = None
            try:
                response = self._client.request(method, self._url + path, json=body)
            except httpx.ConnectError as error:
                if last:
                    raise EngineUnavailableError(
                        f"no server answers at {self._url}: {error}",
                        hint=f"start it, or correct the address; {_LAUNCH}",
                        adapter=self.name,
                    ) from error
            except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, RuntimeError) as error:
                raise map_error(error, options.timeout_s) from error
            else:
                if last or response.status_code not in RETRY_STATUS:
                    return response
                retry_after = response.headers.get("retry-after")
            self._pause(attempt, retry_after)
            attempt += 1

    def _pause(self, attempt: int, retry_after: str | None) -> None:
        wait_s = min(self._options.backoff_s * 2**attempt, 30.0)
        if retry_after is not None and retry_after.isdigit():
            wait_s = min(float(retry_after), 30.0)
        # Jitter, so that the callers who were refused together do not come back together.
        time.sleep(wait_s * random.uniform(0.8, 1.2))

    def close(self) -> None:
        """Close the connections; requests that are under way fail."""
        super().close()
        # Requests in the queue still run, and fail at once: a future that the pool cancelled would
        # never wake who waits for it.
        self._pool.shutdown(wait=False)
        self._client.close()


def map_error(error: Exception, timeout_s: float) -> EngineError:
    """Return our error for one of httpx.

    Args:
        error: What httpx raised.
        timeout_s: The limit that was set, for the message.
    """
    import httpx

    kind = type(error).__name__
    if isinstance(error, httpx.ConnectTimeout):
        return EngineTimeoutError(
            f"the server cannot be reached: no connection within {CONNECT_S:g} s",
            hint="check the address and its port, and whether a firewall is in between",
        )
    if isinstance(error, httpx.TimeoutException):
        return EngineTimeoutError(
            f"no answer within {timeout_s:g} s ({kind})",
            hint="raise timeout_s, or lower concurrency if the server queues",
        )
    if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
        return EngineUnavailableError(f"the address cannot be used: {error}")
    return EngineUnavailableError(f"the connection failed: {kind}: {error}")


def _api_root(url: str) -> str:
    root = url.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return root if root.endswith("/v1") else f"{root}/v1"


def _data_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    # Level 1: the wire is rarely the bottleneck, a core that compresses is.
    image.convert("RGB").save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _entries(reply: Any) -> list[dict[str, Any]]:
    data = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(data, list):
        raise EngineUnavailableError(
            "the server's list of models is not in OpenAI's format",
            hint="the address must be that of an OpenAI-compatible server",
        )
    return [entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _read(response: httpx.Response) -> Any:
    status, url = response.status_code, response.url
    if status >= 400:
        detail = " ".join(response.text.split())[:300]
        message = f"{url} answered {status}: {detail}"
        if status in (401, 403):
            raise EngineUnavailableError(message, hint="set api_key=... or MDIFF_API_KEY")
        if status == 404:
            raise EngineUnavailableError(message, hint=f"wrong address or model name; {_LAUNCH}")
        if status in RETRY_STATUS:
            raise EngineUnavailableError(message, hint="the server is overloaded; try later")
        raise EngineError(message, hint="the server's log says more")
    if response.has_redirect_location:
        # Not followed: pages and key go nowhere but to the address that was given.
        raise EngineUnavailableError(
            f"{url} answered {status}: it has moved to {response.headers['location'][:300]!r}",
            hint="give the address that it has moved to",
        )
    try:
        return response.json()
    except ValueError as error:
        raise EngineError(
            f"{url} answered something that is not JSON",
            hint="the address must be that of an OpenAI-compatible server",
        ) from error


def _to_answer(request: Request, reply: Any) -> Answer:
    try:
        choice = reply["choices"][0]
        text = choice["message"]["content"] or ""
        reason = choice.get("finish_reason") or "stop"
        num_tokens = int((reply.get("usage") or {}).get("completion_tokens") or 0)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(
            f"the reply is not a chat completion: {error!r}",
            hint="the address must be that of an OpenAI-compatible server",
        ) from error
    if reason not in ("stop", "length"):
        raise EngineError(f"the server ended the answer with {reason!r}")
    # Servers that are told to keep special tokens leave the end token in the text.
    text = cut_at_stop(text)
    return Answer(
        id=request.id,
        text=text,
        finish_reason="empty" if not text.strip() else "length" if reason == "length" else "stop",
        num_tokens=num_tokens,
    )
