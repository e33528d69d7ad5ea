"""The pages for browsers: the chat page at /, the dashboard at /dashboard, and what else lies in `files/`.

Owns: HTML, scripts and styles, the headers that keep them harmless, their caching.
Never: answers an API request, or knows a secret: pages are served without a key, and their scripts call the API.
"""
