"""Which certificates are believed: a proxy of a company has one of that company."""

import ssl

import httpx


def trusted() -> ssl.SSLContext:
    """What httpx believes, and what this machine does: its own store, or SSL_CERT_FILE and SSL_CERT_DIR (OpenSSL's)."""
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context
