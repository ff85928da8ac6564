"""The prompt of each task and the checkpoint's own chat template. Loads no torch.

Source: the released checkpoint's prompts; the image comes first in the user message.
"""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from mdiff_core.config import Task
from mdiff_core.errors import CheckpointError
from mdiff_core.models.config import read_json
from mdiff_core.protocol import END_TOKENS, SYSTEM_PROMPT, TASK_PROMPTS


class Codec:
    """Tokenizer and prompts of one checkpoint: requests to ids, ids to text.

    Attributes:
        end_ids: Ids that end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, template: str, *, image_token_id: int) -> None:
        self._tokenizer = tokenizer
        self._image_token_id = image_token_id
        found = (tokenizer.token_to_id(token) for token in END_TOKENS)
        self.end_ids: tuple[int, ...] = tuple(i for i in found if i is not None)
        if not self.end_ids:
            raise CheckpointError(f"the tokenizer knows none of {', '.join(END_TOKENS)}")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        try:
            self._template = environment.from_string(template)
            self._prompts: dict[Task, tuple[list[int], list[int]]] = {
                task: self._split(task) for task in TASK_PROMPTS
            }
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the chat template cannot be used: {error}") from error

    @classmethod
    def from_folder(cls, folder: Path, *, image_token_id: int) -> Codec:
        """Read ``tokenizer.json`` and the chat template of a checkpoint folder.

        Raises:
            CheckpointError: If one of them is missing or cannot be read.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(
                f"tokenizer.json is missing in {folder}",
                hint="the fast tokenizer file is part of the released checkpoint",
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        return cls(tokenizer, _read_template(folder), image_token_id=image_token_id)

    def prompt_text(self, task: Task) -> str:
        """Return the prompt with one image placeholder."""
        messages = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {
                "role": "user",
                "content": [{"type": "image"}, {"type": "text", "text": TASK_PROMPTS[task]}],
            },
        ]
        return self._template.render(messages=messages, add_generation_prompt=True)

    def prompt_ids(self, task: Task, num_image_tokens: int) -> list[int]:
        """Return the prompt ids with the placeholder expanded to ``num_image_tokens``."""
        before, after = self._prompts[task]
        return [*before, *[self._image_token_id] * num_image_tokens, *after]

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of answer tokens, special tokens included."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, special tokens recognised; used by training."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids as :meth:`encode`, and for each the span of characters it stands for."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def token_id(self, token: str) -> int | None:
        """Return the id of one token, or None."""
        return self._tokenizer.token_to_id(token)

    def _split(self, task: Task) -> tuple[list[int], list[int]]:
        ids = self.encode(self.prompt_text(task))
        if ids.count(self._image_token_id) != 1:
            raise CheckpointError(
                f"the chat template gives {ids.count(self._image_token_id)} image placeholders",
                hint="it must give one for a message with one image",
            )
        at = ids.index(self._image_token_id)
        return ids[:at], ids[at + 1 :]


def _read_template(folder: Path) -> str:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{jinja} cannot be read: {error}") from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        value = read_json(path).get("chat_template") if path.is_file() else None
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            # Several named templates: the unnamed use is "default".
            named = {item.get("name"): item.get("template") for item in value}
            if isinstance(named.get("default"), str):
                return str(named["default"])
            raise CheckpointError(f"{path} has no default chat template: {json.dumps(list(named))}")
    raise CheckpointError(
        f"no chat template in {folder}",
        hint="expected chat_template.jinja or .json, or the key in tokenizer_config.json",
    )
