"""`truncation: "auto"` of /v1/responses: which items of a conversation are left out, if it does not fit."""

import dataclasses
from collections.abc import Sequence

import orjson

from palladio.http.chat.chat_run import translate
from palladio.http.generation.context import Context
from palladio.http.prompts.text_encoding import entries_size, run_encoding
from palladio.http.responses.protocol_responses import ResponseRequest
from palladio.http.responses.response_chat import Conversation, ResponseChat
from palladio.http.responses.response_items import Item
from palladio.http.wire.fields import WarningList, Warnings
from palladio.runtime.interface.errors import InvalidRequestError

FREE_PART = 8  # one part in 8 of the context is left for an answer without max_output_tokens

_KEPT_ROLES = ("system", "developer")


async def fitted(context: Context, body: ResponseRequest, conversation: Conversation) -> Conversation:
    """The conversation without its oldest items, if all of it does not fit.

    It is rendered and counted once, and if it does not fit, once more for each binary digit of the number of ways.
    """
    limit = context.facts.max_model_len
    least, wanted = body.max_output_tokens or 1, body.max_output_tokens or limit // FREE_PART
    ways = droppable([*conversation.earlier, *conversation.new])
    if not ways or await _fits(context, body, conversation, limit - least):
        return conversation
    low, high = 0, len(ways) - 1  # the last way is taken if none is enough: then it is refused
    while low < high:
        middle = (low + high) // 2
        shortened = dataclasses.replace(conversation, left_out=ways[middle])
        low, high = (low, middle) if await _fits(context, body, shortened, limit - wanted) else (middle + 1, high)
    return dataclasses.replace(conversation, left_out=ways[low])


async def _fits(context: Context, body: ResponseRequest, conversation: Conversation, most: int) -> bool:
    """Whether a conversation fits. An invalid request fits, and fails when it runs.

    Args:
        most: tokens of the prompt.
    """
    size = entries_size([*conversation.earlier, *conversation.new], body.tools)
    try:
        warnings = WarningList(Warnings(are_errors=False))  # the answer has them when it runs
        chat = (await run_encoding(lambda: ResponseChat(body, conversation, warnings), size)).chat
        if len(orjson.dumps((chat.messages, chat.tools))) > context.counting_encoder.max_counted:
            return False
        counted = await translate(context, chat, warnings.found, is_counted=True)
    except InvalidRequestError:
        return True
    return len(counted.request.prompt_ids) <= most


def droppable(items: Sequence[Item]) -> list[frozenset[int]]:
    """The ways to shorten a conversation, each of which leaves out more than the one before: positions of items.

    Whole turns go first, each from one message of the user to the next; then, one by one, what follows the last one of
    these messages. A call and its outputs go together. The outputs that the model is to answer stay, or the last item.
    """
    users = [position for position, item in enumerate(items) if item.get("role") == "user"]
    pairs: dict[str, set[int]] = {}  # calls with their outputs
    for position, item in enumerate(items):
        if "call_id" in item:
            pairs.setdefault(item["call_id"], set()).add(position)
    begin_of_end = len(items) - 1
    while begin_of_end > 0 and items[begin_of_end - 1]["type"] == items[-1]["type"] == "function_call_output":
        begin_of_end -= 1
    kept = {position for position, item in enumerate(items) if item.get("role") in _KEPT_ROLES}
    kept.update(users[-1:], *(pairs.get(item.get("call_id", ""), set()) for item in items[begin_of_end:]))
    last_turn = users[-1] + 1 if users else 0
    ends = [*users[1:], *range(last_turn + 1, begin_of_end + 1)]
    ways: list[frozenset[int]] = []
    for end in ends:
        gone = set(range(end))
        gone.update(*(pair for pair in pairs.values() if pair & gone))
        way = frozenset(gone - kept)
        if way and way not in ways[-1:]:
            ways.append(way)
    return ways
