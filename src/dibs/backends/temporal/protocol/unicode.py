"""Which texts a message of Temporal's may have. Pure."""


def is_unicode(text: str) -> bool:
    """JSON may carry half of a pair of surrogates, which no message of Temporal's may."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
