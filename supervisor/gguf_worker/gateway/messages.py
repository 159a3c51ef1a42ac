"""The messages of a chat, as OpenAI's clients send them and as templates take them."""

from __future__ import annotations

from collections.abc import Callable

from gguf_worker.gateway.fields import Fields

MOST_MESSAGES = 4096
MOST_PARTS = 1024
MOST_CALLS = 128


def take_messages(fields: Fields) -> tuple[dict[str, object], ...]:
    """Raises ApiError."""
    given = fields.checked_list("messages", fields.need("messages"), MOST_MESSAGES)
    if not given:
        raise fields.refuse("messages", "is empty")
    return tuple(
        _message(fields.checked_object(f"messages[{index}]", one)) for index, one in enumerate(given)
    )


def _message(fields: Fields) -> dict[str, object]:
    role = fields.one_of("role", _ROLES, "")
    message = _ROLES[role](fields)
    if (name := fields.text("name")) is not None:
        message["name"] = name
    fields.finish()
    return message


def _of_system(fields: Fields) -> dict[str, object]:
    """Templates know `developer` by its older name."""
    return {"role": "system", "content": _content(fields)}


def _of_user(fields: Fields) -> dict[str, object]:
    return {"role": "user", "content": _content(fields)}


def _of_assistant(fields: Fields) -> dict[str, object]:
    calls = fields.list_of("tool_calls", MOST_CALLS)
    fields.take("refusal")
    fields.take("audio")
    if calls is None:
        return {"role": "assistant", "content": _content(fields)}
    content = _content(fields) if "content" in fields else ""
    called = [
        _tool_call(fields.checked_object(f"tool_calls[{index}]", call)) for index, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": called}


def _of_tool(fields: Fields) -> dict[str, object]:
    call_id = fields.checked_text("tool_call_id", fields.need("tool_call_id"))
    return {"role": "tool", "content": _content(fields), "tool_call_id": call_id}


_ROLES: dict[str, Callable[[Fields], dict[str, object]]] = {
    "system": _of_system,
    "developer": _of_system,
    "user": _of_user,
    "assistant": _of_assistant,
    "tool": _of_tool,
}


def _content(fields: Fields) -> str:
    """A text, or the texts of its parts, joined."""
    given = fields.need("content")
    if isinstance(given, str):
        return fields.checked_text("content", given)
    parts = fields.checked_list("content", given, MOST_PARTS)
    return "".join(
        _part(fields.checked_object(f"content[{index}]", part)) for index, part in enumerate(parts)
    )


def _part(fields: Fields) -> str:
    kind = fields.text("type", "")
    if kind != "text":
        raise fields.refuse("type", f"is {kind!r}; the model reads parts of type text only")
    text = fields.checked_text("text", fields.need("text"))
    fields.finish()
    return text


def _tool_call(fields: Fields) -> dict[str, object]:
    """A call that was made earlier, told to the template."""
    call_id = fields.text("id", "")
    fields.one_of("type", ("function",), "function")
    function = fields.checked_object("function", fields.need("function"))
    name = function.checked_text("name", function.need("name"))
    arguments = function.text("arguments", "")
    function.finish()
    fields.finish(ignored=("index",))
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
