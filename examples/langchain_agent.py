"""An agent of LangChain that calls a function: `pip install langchain langchain-openai`."""

import argparse

import httpx
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def get_weather(city: str) -> str:
    """Current weather in a city"""
    return f"{city}: sunny, 20 degrees"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    base_url = parser.parse_args().base_url

    name = httpx.get(f"{base_url}/v1/models").json()["data"][0]["id"]
    model = ChatOpenAI(model=name, base_url=f"{base_url}/v1", api_key="None", temperature=0, max_tokens=128)
    agent = create_agent(model, tools=[get_weather])
    result = agent.invoke({"messages": [{"role": "user", "content": "Tell me the weather in Rome."}]})
    for message in result["messages"]:
        calls = [f"{call['name']}({call['args']})" for call in getattr(message, "tool_calls", ())]
        print(f"{message.type}: {', '.join(calls) or message.content}")


if __name__ == "__main__":
    main()
