"""The status page: server-rendered HTML, no framework in the browser, works without JavaScript.

`router` expects the application to carry its :class:`app.db.session.Database` as
`app.state.database`.
"""

from app.web.site import not_found, router

__all__ = ["not_found", "router"]
