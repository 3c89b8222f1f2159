"""Clients that others have written, each driving chats, streams, forms, tools and errors."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.integration.gateways import RunningGateway

PROGRAM = Path(__file__).parents[2] / "examples" / "node" / "openai.js"


Digit = Annotated[int, Field(ge=0, le=9)]


class Car(BaseModel):
    """A car."""

    color: str = Field(max_length=10)
    wheels: int = Field(ge=3, le=6)


@tool
def add(a: Digit, b: Digit) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def gateway(text_gateway: RunningGateway) -> Iterator[RunningGateway]:
    yield text_gateway
    text_gateway.until_idle()


def test_openai_for_node_drives_all_of_it(gateway: RunningGateway) -> None:
    done = subprocess.run(
        ["node", str(PROGRAM), gateway.url, "tools"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert "tools" in lines["models"].split(", ")
    assert lines["answer"] == lines["streamed"]
    assert len(set(lines["tokens"].split())) == 1
    assert 0 <= json.loads(lines["person"])["age"] <= 150
    assert lines["tool_calls"] == "get_weather [ 'city' ]"
    assert lines["after the call"] == "true"
    assert lines["response"] in ("incomplete message", "completed message", "completed empty")
    assert lines["cancelled"] == "true"
    assert lines["error"] == "404 model_not_found NotFoundError"


def langchain(gateway: RunningGateway, model: str = "tools", **fields: Any) -> ChatOpenAI:
    given = {"max_tokens": 300, "temperature": 1, "seed": 3, **fields}
    return ChatOpenAI(
        model=model, base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, **given
    )


async def test_langchain_invokes_and_streams(gateway: RunningGateway) -> None:
    chat = langchain(gateway, max_tokens=20, temperature=0)
    whole = chat.invoke("hello")
    assert whole.content == "".join(str(chunk.content) for chunk in chat.stream("hello"))
    assert whole.content == (await chat.ainvoke("hello")).content
    parts = [chunk async for chunk in chat.astream("hello")]
    assert whole.content == "".join(str(chunk.content) for chunk in parts)
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] <= 20


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gets_structured_output(gateway: RunningGateway, method: Any) -> None:
    car = langchain(gateway).with_structured_output(Car, method=method).invoke("a car?")
    assert isinstance(car, Car)


def test_langchain_calls_tools_and_tells_what_came_of_it(gateway: RunningGateway) -> None:
    chat = langchain(gateway).bind_tools([add], tool_choice="any", parallel_tool_calls=False)
    question = HumanMessage("1 + 2?")
    answer = chat.invoke([question])
    [call] = answer.tool_calls  # type: ignore[attr-defined]
    assert call["name"] == "add"
    assert set(call["args"]) == {"a", "b"}
    streamed: Any = None
    for chunk in chat.stream([question]):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.tool_calls[0]["args"] == call["args"]
    result = ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])
    langchain(gateway, max_tokens=5).bind_tools([add]).invoke([question, answer, result])


def test_langchain_tells_errors(gateway: RunningGateway) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        langchain(gateway, "nobody").invoke("hello")
