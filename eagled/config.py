"""The configuration: one TOML file, one tree of frozen models, every problem reported at once.

Guarantee: code that holds a `Config` need not check it again. The docstring under each field is
its documentation: unit, default, effect; `eagled init` and docs/configuration.md are made from it
(`config_template.py`), so a field without one fails a test.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from eagled.errors import ConfigError
from eagled.types import Mode

CONFIG_NAME = "eagled.toml"
ENV_PREFIX = "EAGLED_"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
Name = Annotated[str, Field(pattern=_NAME.pattern)]
GIB = 1 << 30
MIB = 1 << 20


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as exc:
        raise ValueError(f"{pattern!r} is no regular expression: {exc}") from exc
    return pattern


Regex = Annotated[str, AfterValidator(_compiles)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class RunConfig(_Section):
    """The run as a whole."""

    name: Name = "default"
    """Name of the run, shown in the terminal UI."""
    state_dir: Path = Path("state")
    """Folder of everything the run owns; a relative path starts at the configuration file."""
    seed: int = Field(default=0, ge=0)
    """Seed of every choice that is made by chance (mix, holdout, sampling where it has none)."""


class TargetConfig(_Section):
    """The model that the draft is made for."""

    model: str
    """Folder (or hub id) of the target model; its config and tokenizer are read, and its weights
    only by the transformers extraction back end and the embedded engine."""
    revision: str | None = None
    """Commit of the hub repository; needed when `trust_remote_code` is on."""
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer when it is not the model's."""
    chat_template: Path | None = None
    """Jinja file used instead of the tokenizer's own chat template."""
    template_kwargs: dict[str, bool | int | str] = Field(default_factory=dict)
    """Arguments handed to the chat template, such as `thinking = true`; one that the template
    does not read is refused."""
    family: Literal[
        "auto", "kimi", "deepseek-v3.1", "deepseek-v3", "gpt-oss", "qwen3", "llama3"
    ] = "auto"
    """How the model's answers are read (reasoning, tool calls); auto goes by the control tokens
    that the tokenizer has. Prompts and masks do not depend on it."""
    trust_remote_code: bool = False
    """Run the tokenizer's own Python code (Kimi's needs it), in prep and the text worker only."""

    @model_validator(mode="after")
    def _pinned(self) -> TargetConfig:
        from_hub = not Path(self.tokenizer or self.model).is_dir()
        pinned = re.fullmatch("[0-9a-f]{40}", self.revision or "")
        if self.trust_remote_code and from_hub and not pinned:
            raise ValueError(
                "trust_remote_code needs a pinned revision: set target.revision to the full commit "
                "of the repository (40 hex digits), since a branch can change under the run"
            )
        return self


class SamplingConfig(_Section):
    """How answers are sampled; a field left out comes from the target's generation_config."""

    temperature: float | None = Field(default=None, ge=0, le=5)
    """0 is greedy, which teaches the draft a narrower model than the one that is served."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus; 1 is off."""
    top_k: int | None = Field(default=None, ge=-1)
    """Highest-ranked tokens kept; 0 or -1 is off."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Tokens below this share of the best one are dropped; 0 is off."""
    max_new_tokens: int = Field(default=8192, ge=1)
    """Longest answer in tokens; a lane's context cuts it further."""
    thinking: bool | None = None
    """Ask the template for (or against) a reasoning block; None leaves the template's default."""
    seed: int | None = Field(default=None, ge=0)
    """Base seed sent with each request (plus the sample's own number); None lets the server
    choose."""


class ServerConfig(_Section):
    """One endpoint that speaks SGLang's native protocol."""

    url: str = Field(pattern=r"^https?://[^\s/]+(/[^\s]*)?$")
    """Base address, such as http://127.0.0.1:30000."""
    api_key_file: Path | None = None
    """File that holds the key (mode 0600); never put a key into this file."""
    max_in_flight: int = Field(default=0, ge=0)
    """Most requests at once on this endpoint; 0 leaves it to the lanes."""
    kind: Literal["replica", "router"] = "replica"
    """replica: one engine. router: something in front of several, asked for no load and sent no
    abort; it gets a fixed number of requests (`max_in_flight`, else the lanes' seeds). List the
    replicas instead where you can."""
    launch: tuple[str, ...] = ()
    """Command that the daemon starts this server with, starts again when it dies or hangs, and
    ends with itself; `["serve"]` is what `eagled serve` runs. Empty: somebody else starts it."""
    launch_keep: bool = False
    """Leave a launched server running when the daemon stops; the next daemon takes it over."""
    launch_timeout_s: float = Field(default=3600, gt=0)
    """Longest time from start to first answer of a launched server; big models load slowly."""


class LaneConfig(_Section):
    """A share of the servers for samples up to a context length."""

    context: int = Field(default=0, ge=0)
    """Most tokens of prompt and answer together; 0 is the server's own context."""
    limit: int = Field(default=16, ge=0)
    """Most requests at once; 0 is the server's own maximum."""
    concurrency: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """Requests at once: a fixed number, or "auto" to start from `seed` and move within `limit`."""
    seed: int = Field(default=8, ge=1)
    """Where "auto" starts, and where it stays on a server that tells no load."""
    share: float = Field(default=1.0, gt=0)
    """Its part of the servers' token memory against the shares of other "auto" lanes; what a lane
    cannot use goes to the others."""


def _default_lanes() -> dict[str, LaneConfig]:
    return {
        "short": LaneConfig(context=10_000, limit=200, seed=150, share=0.65),
        "long": LaneConfig(context=0, limit=16, seed=10, share=0.35),
    }


class GenerationConfig(_Section):
    """Requests, retries and what counts as an answer."""

    min_reply: int = Field(default=1024, ge=1)
    """Tokens of answer that must fit beside a prompt for a lane to take it."""
    on_length: Literal["keep", "extend", "drop"] = "keep"
    """What becomes of an answer that hit its limit: kept as such (counted apart), continued from
    its ids so far until it ends (`max_extends`), or rejected."""
    max_extends: int = Field(default=3, ge=1, le=100)
    """Continuations of one answer, each of up to `sampling.max_new_tokens` more, within the
    longest lane that takes it; an answer that has no end then is kept as cut."""
    request_timeout_s: float = Field(default=3600, gt=0)
    """Longest wait for one reply, counted from sending; a long answer takes many minutes."""
    connect_timeout_s: float = Field(default=10, gt=0)
    """Longest wait for a connection."""
    max_failures: int = Field(default=3, ge=1)
    """Failures charged to one sample before it is given up."""
    max_crashes: int = Field(default=3, ge=1)
    """Server crashes that a sample may be in flight at before it is quarantined."""
    retry_base_s: float = Field(default=2, gt=0)
    """First wait before a retry; doubles each time, with full jitter."""
    retry_max_s: float = Field(default=120, gt=0)
    """Longest wait before a retry."""
    breaker_failures: int = Field(default=5, ge=1)
    """Server faults in a row that close an endpoint until a probe answers."""
    probe_interval_s: float = Field(default=5, gt=0)
    """Time between probes of an endpoint."""
    feedback_interval_s: float = Field(default=1.0, ge=0.01)
    """Time between two looks at a busy server's load, which `concurrency = "auto"` follows."""
    hang_s: float = Field(default=120, gt=0)
    """Time without any finished answer and without token progress after which an endpoint counts
    as stuck."""


class ChecksConfig(_Section):
    """What a generated answer must be to be kept; each rule has its own reason in the counts."""

    min_tokens: int = Field(default=1, ge=1)
    """Fewest tokens of an answer, stop token not counted."""
    max_tokens: int = Field(default=0, ge=0)
    """Most tokens of an answer; 0 sets no limit."""
    languages: tuple[str, ...] = ()
    """Languages that answers may be in, such as "en" or "zh", by the script and the small words of
    their content outside code; empty takes all. Text too short to tell is kept."""
    tools: Literal["declared", "any"] = "declared"
    """declared: an answer may call only functions that its conversation declares; any: whatever
    parses."""
    loop_tokens: int = Field(default=512, ge=0)
    """Shortest stretch of tokens that repeats itself and counts as a loop; 0 looks for none."""
    loop_period: int = Field(default=256, ge=1, le=4096)
    """Longest unit, in tokens, whose repetition counts."""
    loop_repeats: int = Field(default=4, ge=4)
    """Fewest rounds of the unit; a unit of 200 tokens has to come four times."""


class DatasetConfig(_Section):
    """One source of prompts."""

    name: Name
    """Name shown everywhere and used as folder name."""
    source: str
    """File or folder (JSONL, JSON, Parquet), or a Hugging Face dataset id."""
    config: str | None = None
    """Configuration of the hub dataset."""
    split: str = "train"
    """Split of the hub dataset."""
    revision: str | None = None
    """Commit of the hub dataset; recorded in the manifest in any case."""
    format: str = "auto"
    """Reader of the rows; auto looks at the source's name and first rows, `eagled prep --formats`
    lists the others."""
    files: tuple[str, ...] = ()
    """Files to read of a folder or hub dataset, as patterns such as `data/train-*.parquet`; empty
    is all files of the folder, or those of the hub dataset's configuration and split."""
    turns: Literal["all", "last"] | Annotated[int, Field(ge=1)] = "all"
    """Answers taken of each conversation: all, the last one, or so many chosen by the run's seed;
    a recorded agent run of hundreds of turns is best cut to a few."""
    max_per_task: int = Field(default=0, ge=0)
    """Most recorded agent runs taken of one task, the first ones of the source; 0 takes all."""
    mode: Mode = Mode.REGENERATE
    """regenerate: the target answers; native: the answers are the target's own already."""
    count: int = Field(default=0, ge=0)
    """Most conversations taken; 0 takes all."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    """A dataset of higher priority is generated first."""
    shuffle: bool = False
    """Choose the `count` rows by the run's seed instead of taking the first; reads all rows, or
    `read_rows` of them."""
    read_rows: int = Field(default=0, ge=0)
    """Most rows read, from the start of the source; 0 reads all that are needed."""
    languages: tuple[str, ...] = ()
    """Languages kept, such as "en" or "zh": by the row's own language field, else by the script
    and the small words of its first user turn; empty keeps all."""
    min_tokens: int = Field(default=0, ge=0)
    """Least tokens of a first prompt."""
    max_tokens: int = Field(default=0, ge=0)
    """Most tokens of a first prompt; 0 is what `prep.max_prompt_tokens` says."""
    include: tuple[Regex, ...] = ()
    """Regular expressions of which one at least must be found in a user turn."""
    exclude: tuple[Regex, ...] = ()
    """Regular expressions of which none may be found in a user turn."""
    sampling: SamplingConfig | None = None
    """Sampling of this dataset instead of [sampling]."""
    checks: ChecksConfig | None = None
    """Checks of this dataset's answers instead of [checks]."""


class PrepConfig(_Section):
    """Preparation of datasets."""

    exclude: tuple[Path, ...] = ()
    """JSON or JSONL files of benchmark prompts that must not be trained on."""
    max_prompt_tokens: int = Field(default=0, ge=0)
    """Longest first prompt; 0 is what the longest lane takes."""
    literal_control_text: Literal["encode", "reject"] = "encode"
    """Control-token text inside content: encode it as plain text, or set the row aside."""
    exclude_ngram: int = Field(default=13, ge=0, le=100)
    """A user turn that shares a run of so many words with a prompt of `exclude` is left out too;
    0 compares whole prompts only."""
    duplicates: Literal["all", "dataset", "off"] = "all"
    """Leave out a question that an earlier row has: of this dataset or of one that stands before it
    in this file (all), of this dataset only, or keep them (the queue still takes it once)."""
    near: Literal["off", "report", "drop"] = "off"
    """Questions that nearly equal an earlier one (MinHash of word triples): not looked for,
    flagged and counted, or left out."""
    near_threshold: float = Field(default=0.8, ge=0.5, le=1)
    """Jaccard similarity from which two questions nearly equal each other."""
    workers: int = Field(default=0, ge=0, le=256)
    """Processes that render and tokenise; 0 is one a core."""


class ExtractConfig(_Section):
    """Hidden states."""

    backend: Literal["transformers", "sglang", "off"] = "transformers"
    """Who computes them: transformers in the extraction worker, or the servers themselves, with
    eagled's plugin (docs/capture.md). off stops after generation."""
    capture: Literal["after", "with_generation", "off"] = "after"
    """When: in a pass over finished samples, or by the server while it generates (backend
    "sglang" only; a sample whose states got lost is passed over again). off is backend "off"."""
    spool: Path | None = None
    """Folder into which the servers write captured states, on this machine; None is `spool` in
    the state directory. It must be the plugin's EAGLED_CAPTURE_SPOOL."""
    spool_bytes: int = Field(default=0, ge=0)
    """Most bytes that wait in the spool before nothing new is generated; 0 is half of what its
    disk has free above the reserve."""
    capture_wait_s: float = Field(default=60, gt=0)
    """Longest wait for a file that a server said is coming."""
    start: Literal["as_completed", "after_merge"] = "as_completed"
    """Extract samples as they finish, or only those of a frozen corpus."""
    layers: tuple[int, ...] = ()
    """Boundary ids (k = the residual stream that enters layer k); empty is [2, N//2, N-3]."""
    last: Literal["supervised", "all", "none"] = "supervised"
    """Positions whose final hidden state is kept."""
    max_tokens: int = Field(default=0, ge=0)
    """Most tokens of a sample whose states are stored; 0 is no limit. The end of an answer goes
    first, but a prompt takes at most half."""
    keep_prompt: int = Field(default=0, ge=0)
    """Tokens before the answer whose states are stored; 0 is the whole prompt. The states are
    computed with all of it in any case."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Compute type; shards are bf16 in any case."""
    batch_tokens: int = Field(default=8192, ge=16)
    """Most tokens of one forward pass."""
    threads: int = Field(default=0, ge=0)
    """CPU threads of the extraction worker; 0 is all cores (less those of other workers)."""

    @model_validator(mode="before")
    @classmethod
    def _no_capture_is_no_backend(cls, data: Any) -> Any:  # noqa: ANN401 - pydantic's raw input
        if isinstance(data, dict) and data.get("capture") == "off":
            return data | {"backend": "off"}
        return data

    @property
    def one_pass(self) -> bool:
        """Whether servers capture while they generate."""
        return self.backend == "sglang" and self.capture == "with_generation"


class ShardConfig(_Section):
    """Shard files."""

    target_bytes: int = Field(default=GIB, ge=MIB)
    """Size at which a shard is closed."""
    max_wait_s: float = Field(default=600, gt=0)
    """A shard that is not full is closed when it is this old, so that a crash redoes little."""
    codec: Literal["raw", "lossless", "fp8"] = "raw"
    """How the layers' states are stored. raw: bf16 as it is; lossless: every bit, about two
    thirds; fp8: one scale a token and layer, half, with a relative error of about 2%."""
    codec_last: Literal["raw", "lossless", "fp8"] = "raw"
    """The same for the final states, from which the target's distribution is computed."""
    threads: int = Field(default=0, ge=0)
    """Threads that encode; 0 is one for every two cores."""


class DiskConfig(_Section):
    """What the run may use of the disk."""

    budget_bytes: int = Field(default=0, ge=0)
    """Most bytes of the state directory; 0 is what the disk has."""
    reserve_bytes: int = Field(default=2 * GIB, ge=0)
    """Free bytes that extraction never touches."""
    resume_bytes: int = Field(default=GIB, ge=0)
    """Free bytes above the reserve at which paused extraction goes on."""
    ballast_bytes: int = Field(default=0, ge=0)
    """Size of a file that is given up when the disk is full all the same, so that what runs can
    be finished; 0 is none. It is made again when there is room."""
    mode: Literal["keep", "stream"] = "keep"
    """keep: shards stay; stream: they form a ring that consumers read and release."""
    ring_bytes: int = Field(default=0, ge=0)
    """Most bytes of shards in stream mode; 0 is what the disk has, less the reserve."""
    lease_s: float = Field(default=3600, gt=0)
    """Time after which a consumer of the ring that was not heard of no longer holds a shard."""


class MergeConfig(_Section):
    """The frozen corpus."""

    holdout: float = Field(default=0.02, ge=0, lt=1)
    """Share of conversations held out for evaluation, chosen by their identity."""


class VocabConfig(_Section):
    """The draft vocabulary."""

    size: int = Field(default=32_000, ge=1)
    """Tokens the draft can propose; at most the target's vocabulary."""
    coverage: float = Field(default=0.0, ge=0, lt=1)
    """Share of the supervised tokens to cover: the vocabulary is as small as that allows, and at
    most `size`. 0 takes `size`."""
    always_keep: tuple[int, ...] = ()
    """Ids that are in whatever their count; control tokens always are."""


class TrainConfig(_Section):
    """Training of the draft."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N; with torchrun each process takes the GPU of its rank."""
    threads: int = Field(default=0, ge=0)
    """CPU threads; 0 is all cores."""
    ttt_steps: int = Field(default=5, ge=1, le=16)
    """Steps of training-time test; at least as many as the server shall guess ahead."""
    decay: float = Field(default=0.8, gt=0, le=1)
    """Weight of each further step's loss, relative to the one before it."""
    loss: Literal["soft_ce", "kl"] = "soft_ce"
    """soft_ce: cross-entropy with the target's distribution; kl: less its entropy (same
    gradient)."""
    start: Literal["target", "random"] = "target"
    """Begin with the target's output head and norm, or with random ones."""
    epochs: float = Field(default=3, gt=0)
    """Passes over the training samples; a stream is read once."""
    max_steps: int = Field(default=0, ge=0)
    """Optimiser steps at most; 0 is what the epochs give. The learning rate falls to its end over
    these steps. `eagled train --stream` needs it: a stream does not tell its length."""
    batch_tokens: int = Field(default=8192, ge=16)
    """Tokens of one forward pass; documents are packed without padding."""
    accumulation: int = Field(default=1, ge=1)
    """Forward passes of each process an optimiser step."""
    max_samples: int = Field(default=0, ge=0)
    """Training samples at most, chosen by the seed; 0 is all. A smaller choice is part of a larger
    one, so that several runs show what more data is worth. A stream has no use for it."""
    max_tokens: int = Field(default=4096, ge=4)
    """Longest sample; a longer one is cut at its end. Drafts are poor beyond what they saw."""
    lr: float = Field(default=5e-4, gt=0)
    """Highest learning rate (AdamW, betas 0.9 and 0.95)."""
    warmup: float = Field(default=0.03, ge=0, lt=1)
    """Share of the steps in which the learning rate rises."""
    lr_floor: float = Field(default=0.05, ge=0, le=1)
    """Share of the highest learning rate that is left at the end of the cosine."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of matrices."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    ema: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a running mean of the weights, which is then evaluated and exported; 0 is off."""
    compile: bool = True
    """Fuse element-wise operations by torch.compile on a GPU (a minute at the start)."""
    eval_every: int = Field(default=0, ge=0)
    """Optimiser steps between held-out estimates; 0 is at the end of each epoch."""
    eval_samples: int = Field(default=512, ge=1)
    """Held-out samples of an estimate, at most."""
    draft_steps: int = Field(default=0, ge=0, le=16)
    """Guesses a verify step in estimates; 0 is `ttt_steps`."""
    checkpoint_every: int = Field(default=200, ge=1)
    """Optimiser steps between checkpoints; two are kept."""
    intermediate_size: int = Field(default=0, ge=0)
    """Width of the draft's MLP; 0 is the target's."""
    heads: int = Field(default=0, ge=0)
    """Query heads of the draft; 0 is the target's."""
    kv_heads: int = Field(default=0, ge=0)
    """Key-value heads of the draft; 0 is the target's."""
    max_positions: int = Field(default=0, ge=0)
    """Context that the exported draft declares; 0 is the target's."""


class ServeConfig(_Section):
    """How `eagled serve` (and `launch = ["serve"]`) starts SGLang."""

    python: str = "python3"
    """Python of SGLang's own environment."""
    args: tuple[str, ...] = ()
    """More flags for SGLang, such as `["--tp-size", "8"]`; one that would spoil the data is
    refused."""
    env: dict[str, str] = Field(default_factory=dict)
    """More environment variables for SGLang."""
    draft_args: tuple[str, ...] = (
        "--speculative-num-steps", "3", "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", "4",
    )  # fmt: skip
    """Flags of speculative decoding beside the draft itself, used with `--draft`."""


class DaemonConfig(_Section):
    """The daemon itself."""

    stop_timeout_s: float = Field(default=60, gt=0)
    """How long SIGTERM waits for running requests before it hands them back."""
    socket: Path | None = None
    """Control socket; None is <state_dir>/control.sock or systemd's runtime directory."""
    group: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,32}$")
    """A group that may use the socket too; the daemon's user must be in it. Empty: nobody else."""
    group_may: Literal["read", "control"] = "read"
    """What that group may do: look, or also change."""
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    """Port on 127.0.0.1 for Prometheus; 0 is off (the socket always has /metrics)."""
    workers: Literal["spawn", "external"] = "spawn"
    """Start the text and extraction workers, or expect them from their own units."""
    text_workers: int = Field(default=1, ge=1, le=64)
    """Text worker processes."""
    backup_every_h: float = Field(default=24, ge=0)
    """Hours between automatic copies of the database to backups/auto; 0 makes none."""
    backup_keep: int = Field(default=7, ge=1)
    """Automatic copies that stay; older ones are removed."""
    on_alarm: tuple[str, ...] = ()
    """Program and arguments to run when an alarm is raised or cleared; it reads JSON on stdin."""


class Config(_Section):
    """The whole configuration."""

    run: RunConfig = RunConfig()
    target: TargetConfig
    sampling: SamplingConfig = SamplingConfig()
    servers: tuple[ServerConfig, ...] = ()
    lanes: dict[Name, LaneConfig] = Field(default_factory=_default_lanes)
    generation: GenerationConfig = GenerationConfig()
    checks: ChecksConfig = ChecksConfig()
    datasets: tuple[DatasetConfig, ...] = ()
    prep: PrepConfig = PrepConfig()
    extract: ExtractConfig = ExtractConfig()
    shards: ShardConfig = ShardConfig()
    disk: DiskConfig = DiskConfig()
    merge: MergeConfig = MergeConfig()
    vocab: VocabConfig = VocabConfig()
    train: TrainConfig = TrainConfig()
    serve: ServeConfig = ServeConfig()
    daemon: DaemonConfig = DaemonConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        problems = [*_lane_problems(self), *_name_problems(self), *_capture_problems(self)]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def dataset(self, name: str) -> DatasetConfig:
        """Return the dataset called `name`.

        Raises:
            ConfigError: if there is none; the message lists those there are.
        """
        for dataset in self.datasets:
            if dataset.name == name:
                return dataset
        known = ", ".join(d.name for d in self.datasets) or "none"
        raise ConfigError(f"no dataset is called {name!r}; configured: {known}")

    def sampling_of(self, dataset: str) -> SamplingConfig:
        """Return the sampling that holds for a dataset."""
        own = next((d.sampling for d in self.datasets if d.name == dataset), None)
        return own or self.sampling

    def checks_of(self, dataset: str) -> ChecksConfig:
        """Return the checks that hold for a dataset's answers."""
        own = next((d.checks for d in self.datasets if d.name == dataset), None)
        return own or self.checks


def _lane_problems(config: Config) -> list[str]:
    problems = []
    if not config.lanes:
        problems.append("lanes: at least one lane is needed")
    for name, lane in config.lanes.items():
        if lane.context and lane.context <= config.generation.min_reply:
            problems.append(
                f"lanes.{name}.context = {lane.context} leaves no room for "
                f"generation.min_reply = {config.generation.min_reply}"
            )
        fixed = lane.concurrency
        if isinstance(fixed, int) and lane.limit and fixed > lane.limit:
            problems.append(f"lanes.{name}.concurrency = {fixed} is over its limit {lane.limit}")
    return problems


def _capture_problems(config: Config) -> list[str]:
    extract = config.extract
    if extract.capture == "with_generation" and extract.backend == "transformers":
        text = 'extract.capture = "with_generation" needs extract.backend = "sglang": '
        return [text + "only the server that generates has the states"]
    if extract.backend == "sglang" and any(s.kind == "router" for s in config.servers):
        return ['extract.backend = "sglang" needs replicas in [[servers]], not a router']
    return []


def _name_problems(config: Config) -> list[str]:
    names = [d.name for d in config.datasets]
    twice = sorted({n for n in names if names.count(n) > 1})
    urls = [s.url for s in config.servers]
    same = sorted({u for u in urls if urls.count(u) > 1})
    return [f"datasets: the name {n!r} is used twice" for n in twice] + [
        f"servers: {u} is listed twice" for u in same
    ]
