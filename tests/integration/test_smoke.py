def test_x(client, server):
    print(client.completions.create(model="tiny", prompt="Hello", temperature=0, max_tokens=40, logprobs=3))
    print(client.completions.create(model="tiny", prompt="Hello", temperature=0.7, max_tokens=40))
    r = client.chat.completions.create(model="tiny", messages=[{"role":"user","content":"hi"}], temperature=1, max_tokens=40, n=3)
    print(r)
    print(server.info())
