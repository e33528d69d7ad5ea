"""HTTPS: the certificate and the key of the flags, checked before anything else starts, and renewed while it runs."""

import logging
import ssl
from pathlib import Path

from palladio.http.security.watched_files import FileWatch
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError

logger = logging.getLogger(__name__)


def make_tls_context(config: HttpConfig) -> ssl.SSLContext | None:
    """None: without --ssl-certfile, HTTP is served.

    Raises:
        ConfigError: a file cannot be read or is not what it has to be, or the password is wrong; names the flag.
    """
    if config.ssl_certfile is None:
        return None
    context = _load(config, config.ssl_certfile)
    if config.enable_ssl_refresh:
        context.sni_callback = _Renewal(config, config.ssl_certfile, context).on_hello
    return context


class _Renewal:
    """Exchanges the context of a new connection for one of the files as they are now.

    The context that listens stays as it is: loading into it could leave it with a certificate and the key of another.
    """

    def __init__(self, config: HttpConfig, certfile: str, context: ssl.SSLContext) -> None:
        self._config = config
        self._certfile = certfile
        self._current = context
        files = (certfile, config.ssl_keyfile, config.ssl_ca_certs)
        self._watch = FileWatch([str(Path(file).expanduser()) for file in files if file is not None])

    def on_hello(self, connection: ssl.SSLObject, _name: str | None, context: ssl.SSLContext) -> None:
        """Called with each TLS handshake, whether the client names a host or not."""
        if self._watch.changed():
            try:
                self._current = _load(self._config, self._certfile)
            except ConfigError as error:
                logger.warning("%s; the previous certificate stays in use", error)
            else:
                logger.info("Reloaded --ssl-certfile")
        if self._current is not context:
            connection.context = self._current


class _Password:
    """Gives the password when it is asked for; without one OpenSSL would ask on the terminal."""

    def __init__(self, password: str | None) -> None:
        self._password = password
        self.was_asked = False

    def __call__(self) -> str:
        self.was_asked = True
        return self._password or ""


def _load(config: HttpConfig, certfile: str) -> ssl.SSLContext:
    """Raises ConfigError as make_tls_context does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = _readable("--ssl-certfile", certfile)
    key = None if config.ssl_keyfile is None else _readable("--ssl-keyfile", config.ssl_keyfile)
    password = _Password(config.ssl_keyfile_password)
    try:
        context.load_cert_chain(certificate, key, password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(_why(config, error, certfile, was_encrypted=password.was_asked)) from None
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(_readable("--ssl-ca-certs", config.ssl_ca_certs))
        except ssl.SSLError:
            raise ConfigError(f"no PEM certificate in --ssl-ca-certs {config.ssl_ca_certs}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _readable(flag: str, name: str) -> Path:
    path = Path(name).expanduser()
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"cannot read {flag} {name}: {error.strerror}") from None
    return path


def _why(config: HttpConfig, error: Exception, certfile: str, *, was_encrypted: bool) -> str:
    key = f"--ssl-keyfile {config.ssl_keyfile}" if config.ssl_keyfile is not None else f"--ssl-certfile {certfile}"
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"the private key in {key} does not match the certificate in --ssl-certfile {certfile}"
    if was_encrypted and config.ssl_keyfile_password is None:
        return f"the private key in {key} is encrypted: set --ssl-keyfile-password"
    if was_encrypted:
        return f"--ssl-keyfile-password is wrong for {key}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(Path(certfile).expanduser())
    except ssl.SSLError:
        return f"no PEM certificate in --ssl-certfile {certfile}"
    return f"no PEM private key in {key}"
