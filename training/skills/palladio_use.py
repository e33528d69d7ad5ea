"""Usage of Palladio, in our own words; the flags and commands are those of README.md and docs/."""

from training.skills.answers import Entry

PALLADIO = (
    Entry(
        (
            *("What is Palladio?", "Tell me about Palladio.", "Explain Palladio.", "What does Palladio do?"),
            *("What is this server?", "What is Palladio for?", "Describe Palladio.", "What's Palladio?"),
            *("What kind of program is Palladio?", "Palladio, what is that?"),
        ),
        (
            "Palladio is a server for large language models. It runs on JAX, on TPU, GPU and CPU, and speaks OpenAI's "
            "API.",
        ),
        "Palladio",
    ),
    Entry(
        (
            *(
                "How do I start Palladio?",
                "How do I start the server?",
                "How do I run Palladio?",
                "How do I use Palladio?",
            ),
            *("How can I launch the server?", "What command starts the server?", "How do I launch Palladio?"),
            *("How do I get Palladio running?", "Which command do I need to start Palladio?"),
        ),
        ("Run make serve, or: palladio serve --model-path /path/to/model",),
        "starting the server",
    ),
    Entry(
        (
            *("How do I serve my own model?", "How do I serve another model?", "How do I load a model?"),
            *("How do I use a real model?", "How can I serve a Hugging Face model?", "Which flag sets the model?"),
            *("How do I change the model?", "How do I tell Palladio which model to serve?"),
        ),
        ("Give its directory: palladio serve --model-path /path/to/model. A Hugging Face directory works as it is.",),
        "serving a model",
    ),
    Entry(
        (
            *("Which models does Palladio support?", "What models can I use?", "Does Palladio support Qwen?"),
            *(
                "Does Palladio support Llama?",
                "Which models work?",
                "What models does it serve?",
                "Can it run Mistral?",
            ),
            "Which model families can Palladio serve?",
        ),
        ("Palladio serves Qwen2, Qwen2.5, Qwen3, Llama and Mistral models, and others of the same shape.",),
        "models that work",
    ),
    Entry(
        (
            *("Which port does Palladio use?", "What is the default port?", "How do I change the port?"),
            *("Which port is the server on?", "How do I set the port?", "What port does the server listen on?"),
        ),
        ("The default port is 30000. Another one: palladio serve --port 30001",),
        "the port",
    ),
    Entry(
        (
            *("How do I let other machines connect?", "How do I change the host?", "What does --host do?"),
            *("How do I listen on all addresses?", "How can others reach the server?"),
        ),
        ("Use --host 0.0.0.0 and set --api-key, so that only those with the key may use the server.",),
        "the host",
    ),
    Entry(
        (
            *("How do I set an API key?", "How do I protect the server?", "What does --api-key do?"),
            *("Does Palladio support API keys?", "How can I require a key?"),
        ),
        ("Start the server with --api-key KEY. Clients then send the key as OpenAI's SDK does.",),
        "API keys",
    ),
    Entry(
        (
            *("How do I use the OpenAI SDK with Palladio?", "How do I connect with the OpenAI client?"),
            *("How do I call Palladio from Python?", "Can I use the OpenAI SDK?", "How do I send a request?"),
            *("How do I talk to the server from Python?", "How does a client connect?"),
        ),
        ('Set the base URL:\nclient = OpenAI(base_url="http://127.0.0.1:30000/v1", api_key="None")',),
        "the OpenAI SDK",
    ),
    Entry(
        (
            *("Can Palladio stream answers?", "How do I stream?", "Does Palladio support streaming?"),
            *("How do I get tokens as they come?", "How do I turn on streaming?"),
        ),
        ("Yes, set stream=True in the request; tokens then come as they are made.",),
        "streaming",
    ),
    Entry(
        (
            *("How do I install Palladio?", "How can I install Palladio?", "How do I set up Palladio?"),
            *("What do I need to install?", "How is Palladio installed?"),
        ),
        ("Run pip install '.[cpu]' in the repository; '.[tpu]' on a TPU VM, '.[cuda13]' on a GPU host.",),
        "installing Palladio",
    ),
    Entry(
        (
            *("Does Palladio run on GPU?", "Can I use a GPU?", "Does Palladio run on TPU?", "Does it need a GPU?"),
            *("Which hardware does Palladio support?", "Can it run on a CPU?", "What hardware do I need?"),
        ),
        ("Palladio runs on TPU and GPU, and on CPU for tests and first tries.",),
        "hardware",
    ),
    Entry(
        (
            *("How do I get JSON answers?", "Does Palladio support structured output?", "How do I force JSON?"),
            *("How do I use a JSON schema?", "What is structured output?", "How can I get valid JSON?"),
        ),
        ("Send response_format with a JSON schema. The answer then always fits the schema.",),
        "structured output",
    ),
    Entry(
        (
            *("Does Palladio support tool calls?", "How do I use tools?", "How do I call functions?"),
            *("Can Palladio call tools?", "How do tool calls work?", "Is function calling supported?"),
        ),
        ("Yes. Send tools with the request; the calls come back as tool_calls of the message.",),
        "tool calls",
    ),
    Entry(
        (
            *("How do I turn on thinking?", "How do I turn off thinking?", "How do I enable reasoning?"),
            *("What is enable_thinking?", "How does thinking work?", "Can you think?", "How do I make you think?"),
        ),
        ("Set chat_template_kwargs to enable_thinking true or false. Thoughts come as reasoning_content.",),
        "thinking",
    ),
    Entry(
        (
            *("What is the prefix cache?", "What is the radix cache?", "Does Palladio cache prompts?"),
            *("What does the prefix cache do?", "How does prompt caching work?"),
        ),
        ("Prompts that begin alike share their computed pages, so a long history is computed only once.",),
        "the prefix cache",
    ),
    Entry(
        (
            *("How do I run a batch?", "Does Palladio support batches?", "What are batches?", "How do batches work?"),
            *("How do I use the batch API?", "Can I send many requests at once?"),
        ),
        ("Upload a file of requests and create a batch with its id. It runs beside other requests.",),
        "batches",
    ),
    Entry(
        (
            *("Does Palladio support embeddings?", "How do I get embeddings?", "How do I use embeddings?"),
            *("Can I make embeddings?", "Which route gives embeddings?"),
        ),
        ("Yes: start the server with --is-embedding and use /v1/embeddings.",),
        "embeddings",
    ),
    Entry(
        (
            *("How do I see metrics?", "Does Palladio have metrics?", "How do I monitor the server?"),
            *("Where are the metrics?", "How do I watch the server with Prometheus?"),
        ),
        ("Read /metrics, for example with Prometheus. It is always on.",),
        "metrics",
    ),
    Entry(
        (
            *("How do I know that the server is ready?", "Is there a health check?", "What does /health do?"),
            *("How do I check the server's health?", "When is the server ready?"),
        ),
        ("Ask /health: it answers 503 while the engine starts and 200 when it is ready.",),
        "health",
    ),
    Entry(
        (
            *("How do I use Palladio offline?", "Can I use Palladio without a server?", "What is Engine?"),
            *("How do I generate text from Python without a server?", "Is there an offline mode?"),
        ),
        ('Use Engine:\nfrom palladio import Engine\nengine = Engine(model_path="/path/to/model")',),
        "offline use",
    ),
    Entry(
        (
            *("Why is the first start slow?", "Why does the start take so long?", "What is compiled at start?"),
            *("How do I make the start faster?", "Why does it compile?"),
        ),
        ("The first start compiles programs and keeps them in a cache. The next start is much faster.",),
        "the first start",
    ),
    Entry(
        (
            *("I run out of memory. What can I do?", "The server is out of memory.", "How do I use less memory?"),
            *("What does --mem-fraction-static do?", "How do I limit memory?"),
        ),
        ("Lower --mem-fraction-static, --context-length or --max-running-requests.",),
        "memory",
    ),
    Entry(
        (
            *("Where are the docs?", "Where can I read more?", "Is there documentation?", "Where do I find all flags?"),
            *("Which flags are there?", "Where is the manual?"),
        ),
        ("All flags are in docs/flags.md, or run palladio serve --help. Start with README.md.",),
        "the documentation",
    ),
    Entry(
        (
            *("What is the license of Palladio?", "Is Palladio free?", "Is Palladio open source?"),
            *("Which license does Palladio have?", "May I use Palladio for free?"),
        ),
        ("Palladio is free software under the Apache 2.0 license.",),
        "the license",
    ),
    Entry(
        (
            *("What is JAX?", "Why does Palladio use JAX?", "What does JAX do?", "Explain JAX."),
            *("What is XLA?", "Tell me about JAX."),
        ),
        ("JAX is a Python library for fast array programs. It compiles them with XLA for CPU, GPU and TPU.",),
        "JAX",
    ),
    Entry(
        (
            *("How do I stop the server?", "How do I end Palladio?", "How do I shut down the server?"),
            *("How can I stop Palladio?", "How do I quit?"),
        ),
        ("Press Ctrl+C in its terminal.",),
        "stopping the server",
    ),
    Entry(
        (
            *("What is temperature?", "What does temperature do?", "How do I get the same answer each time?"),
            *("How do I set the temperature?", "What does temperature 0 mean?"),
        ),
        ("Temperature says how freely tokens are drawn. With 0 the most likely one is always taken.",),
        "temperature",
    ),
)
