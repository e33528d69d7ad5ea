"""Faults in how the pages for browsers are served."""

from tests.faults.fault import Fault

_FILES, _ROUTES = "http/pages/page_files.py", "http/pages/routes_pages.py"
_TESTS = ("tests/http/pages/test_pages.py",)

PAGE_FAULTS = (
    Fault(
        "scripts within a page may run",
        _FILES,
        "\"script-src 'self'\"",
        "\"script-src 'self' 'unsafe-inline'\"",
        _TESTS,
    ),
    Fault("strings may become markup", _FILES, "\"require-trusted-types-for 'script'\",", "", _TESTS),
    Fault(
        "pages of other sites may frame this one", _FILES, "\"frame-ancestors 'none'\"", '"frame-ancestors *"', _TESTS
    ),
    Fault("every file has the same ETag", _FILES, "sha256(self.content)", 'sha256(b"")', _TESTS),
    Fault("a browser that has the file gets it again", _FILES, "if known & {self.tag", "if known > {self.tag", _TESTS),
    Fault("every client gets the page", _ROUTES, 'if page is not None and "text/html" in', 'if page and "" in', _TESTS),
    Fault("without the page its files need no key", _ROUTES, " if config.ui else frozenset()", "", _TESTS),
    Fault("the page needs a key", _ROUTES, "frozenset((*PAGES, *_other_paths()))", "frozenset(_other_paths())", _TESTS),
    Fault("behind a prefix the page is lost", _ROUTES, "if root else pages", "if not root else pages", _TESTS),
    Fault(
        "an error may be framed, and load what it likes",
        "http/middleware.py",
        '"Content-Security-Policy", DATA_POLICY',
        '"Content-Security-Policy", "script-src *"',
        _TESTS,
    ),
    Fault(
        "scripts within /docs may run",
        _FILES,
        "DOCS_POLICY if name == DOCS else",
        '"script-src *" if name else',
        _TESTS,
    ),
)
