"""Who a conversation is, whatever file or place it comes from.

Guarantee: a uid depends on the dataset's name and the content alone, so a second import adds
nothing and two rows never overwrite each other; the dedup key is the same in every dataset.
"""

from __future__ import annotations

import json
import unicodedata

from eagled.text.messages import Conversation, Message, Role, to_json
from eagled.tokens import make_uid
from eagled.types import Mode

_SHORT_CHARS = 16  # below it a first question ("Hi") says too little: all user turns count


def normalised(text: str) -> str:
    """Return `text` NFKC-normalised, case-folded, with whitespace runs made one blank."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split())


def dedup_key(messages: tuple[Message, ...]) -> bytes:
    """Return the 16-byte key that equals for the same question: system text and first user turn."""
    system = messages[0].content if messages[0].role is Role.SYSTEM else ""
    asked = [normalised(m.content) for m in messages if m.role is Role.USER]
    if len(asked[0]) >= _SHORT_CHARS:
        asked = asked[:1]
    return make_uid("question", normalised(system), *asked)


def question_key(conversation: Conversation) -> bytes:
    """Return the key by which duplicates are found.

    Several runs of an agent at one task are no duplicates, so there the whole run is in the key.
    """
    if not conversation.trajectory:
        return dedup_key(conversation.messages)
    text = json.dumps(to_json(conversation.messages), ensure_ascii=False, sort_keys=True)
    return make_uid("run", text, json.dumps(conversation.targets))


def task_key(conversation: Conversation) -> bytes | None:
    """Return the key of the task that a recorded agent run works on; None for anything else."""
    if not conversation.trajectory:
        return None
    if conversation.task is not None:
        return make_uid("task", conversation.task)
    return dedup_key(conversation.messages)


def conversation_uid(dataset: str, conversation: Conversation) -> bytes:
    """Return the 16-byte identity of a conversation inside its dataset.

    Answers that will be regenerated are no part of it: the same question with another recorded
    answer is the same work, whichever of the two rows comes first in the file.
    """
    messages = to_json(conversation.messages)
    if conversation.mode is Mode.REGENERATE:
        for target in conversation.targets:
            for message in messages[target : target + 1]:
                message["content"] = ""
                message.pop("reasoning_content", None)
    value = {"messages": messages, "tools": conversation.tools}
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return make_uid(dataset, text)


def sample_uid(conversation: bytes, turn: int) -> bytes:
    """Return the 16-byte identity of one turn; `turn` counts targets from 0."""
    return make_uid(conversation, str(turn))
