"""The ClientApp that Flower loads; its handlers are in app/client/handlers.py."""

from app.client import handlers

app = handlers.app
