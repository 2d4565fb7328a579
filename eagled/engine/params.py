"""What a client may ask of `/generate`, checked and frozen.

Guarantee: whatever passes `parse_generate` can be run; everything else is refused here with a
message that names the value, so the loop never sees a bad request. The words and limits are those
of SGLang 0.5.23, with one deliberate difference: an id outside the vocabulary is refused, where
the real server dies.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eagled.errors import RequestRejectedError

DEFAULT_NEW_TOKENS = 128  # SGLang's default
RESERVED_TOKENS = 6  # SGLang keeps this many of the context back when it checks a prompt
_GREEDY_BELOW = 1e-6  # SGLang treats lower temperatures as greedy


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server can hold; all in tokens except `slots` and `max_queued` (requests)."""

    context_length: int
    max_total_tokens: int
    slots: int
    vocab_size: int
    max_queued: int | None = None

    @property
    def longest(self) -> int:
        """Tokens that the longest request may reach, prompt and answer together."""
        return min(self.context_length, self.max_total_tokens)

    @property
    def max_req_input_len(self) -> int:
        """A prompt must be shorter than this."""
        return self.longest - RESERVED_TOKENS


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one answer is drawn and where it ends.

    `top_k` 0 means off; `temperature` 0.0 means greedy; `seed` None means a random one.
    """

    max_new_tokens: int = DEFAULT_NEW_TOKENS
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False

    @property
    def greedy(self) -> bool:
        """Whether the next token is simply the most likely one."""
        return self.temperature == 0.0 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt to continue. `input_ids` are all inside the vocabulary."""

    rid: str
    input_ids: tuple[int, ...]
    sampling: Sampling

    @property
    def need(self) -> int:
        """Tokens that the request may reach in the cache."""
        return len(self.input_ids) + self.sampling.max_new_tokens


class _SamplingBody(BaseModel):
    """SGLang's sampling keys.

    Those that change the distribution and are not offered here must keep the value for "off".
    """

    model_config = ConfigDict(extra="forbid")

    max_new_tokens: Annotated[int, Field(ge=0)] | None = DEFAULT_NEW_TOKENS
    min_new_tokens: int = Field(default=0, ge=0)
    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = -1
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int | None = None
    n: Literal[1] = 1
    frequency_penalty: Literal[0] = 0
    presence_penalty: Literal[0] = 0
    repetition_penalty: Literal[1] = 1
    stop_regex: None = None
    json_schema: None = None
    regex: None = None
    ebnf: None = None
    structural_tag: None = None
    logit_bias: None = None
    custom_params: None = None


class _GenerateBody(BaseModel):
    """The top-level keys that are read; any other is ignored, as SGLang does."""

    input_ids: list[Annotated[int, Field(strict=True)]] | None = None
    text: str | None = None
    sampling_params: dict[str, Any] | None = None
    rid: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    stream: Literal[False] | None = None
    return_logprob: Literal[False] | None = None
    return_hidden_states: Literal[False] | None = None


def parse_generate(body: bytes, limits: Limits) -> GenerateRequest:
    """Return the request in a `/generate` body.

    Raises:
        RequestRejectedError: with `detail` as the message for the client; status 400.
    """
    try:
        fields = _GenerateBody.model_validate(_json_object(body))
        sampling = _SamplingBody.model_validate(fields.sampling_params or {})
    except ValidationError as exc:
        _refuse("; ".join(_complaint(error) for error in exc.errors(include_url=False)))
    ids = _checked_ids(fields, limits)
    given = "max_new_tokens" in (fields.sampling_params or {})
    wanted = sampling.max_new_tokens if given else None
    _check_lengths(len(ids), wanted, limits)
    room = limits.longest - len(ids)
    new_tokens = room if sampling.max_new_tokens is None else min(sampling.max_new_tokens, room)
    return GenerateRequest(fields.rid or uuid.uuid4().hex, ids, _frozen(sampling, new_tokens))


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        _refuse(f"the body is not JSON: {exc}")
    if not isinstance(value, dict):
        _refuse(f"the body must be a JSON object, not {type(value).__name__}")
    return value


def _checked_ids(fields: _GenerateBody, limits: Limits) -> tuple[int, ...]:
    if fields.input_ids is None:
        _refuse("input_ids is missing; this server takes one prompt of token ids a request")
    if not fields.input_ids:
        _refuse("input_ids cannot be empty.")
    outside = next((i for i in fields.input_ids if not 0 <= i < limits.vocab_size), None)
    if outside is not None:
        _refuse(f"input_ids holds {outside}, outside the vocabulary 0..{limits.vocab_size - 1}")
    return tuple(fields.input_ids)


def _check_lengths(prompt: int, new_tokens: int | None, limits: Limits) -> None:
    context = limits.context_length
    if prompt >= context:
        _refuse(
            f"The input ({prompt} tokens) is longer than the model's context length "
            f"({context} tokens)."
        )
    if new_tokens is not None and prompt + new_tokens > context:
        _refuse(
            f"Requested token count exceeds the model's maximum context length of {context} "
            f"tokens: {prompt + new_tokens}, {prompt} in the prompt and {new_tokens} new ones."
        )
    if prompt >= limits.max_req_input_len:
        _refuse(
            f"Input length ({prompt} tokens) exceeds the maximum allowed length "
            f"({limits.max_req_input_len} tokens)."
        )


def _frozen(body: _SamplingBody, new_tokens: int) -> Sampling:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return Sampling(
        max_new_tokens=new_tokens,
        min_new_tokens=body.min_new_tokens,
        temperature=0.0 if body.temperature < _GREEDY_BELOW else body.temperature,
        top_p=body.top_p,
        top_k=max(body.top_k, 0),
        min_p=body.min_p,
        seed=body.sampling_seed,
        stop=tuple(text for text in stop if text),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos,
        skip_special_tokens=body.skip_special_tokens,
        spaces_between_special_tokens=body.spaces_between_special_tokens,
        no_stop_trim=body.no_stop_trim,
    )


def _complaint(error: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails, loosely typed
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unexpected sampling parameter {where!r}"
    return f"{where}: {error['msg']}, got {str(error['input'])[:80]!r}"


def _refuse(detail: str) -> NoReturn:
    raise RequestRejectedError("refused_by_server", detail, status=400)
