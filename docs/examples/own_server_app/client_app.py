"""fedgeo's ClientApp as it is."""

from fedgeo.client import handlers

app = handlers.app
