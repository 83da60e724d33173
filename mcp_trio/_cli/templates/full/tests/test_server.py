"""Tests of the server: by its recorded session, and by clients in this process."""

import json

import pytest
from mcp_trio import Client, ToolError

from my_server.database import Book
from my_server.server import server

BOOKS = {"author": "Austen", "titles": ["Emma", "Persuasion", "Emma"]}


@pytest.fixture(autouse=True)
def database(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOKS_DATABASE", str(tmp_path / "books.db"))


async def titles_by(author, client):
    result = await client.read_resource(f"books://{author}")
    return [book["title"] for book in json.loads(result.contents[0].text)]


@pytest.mark.mcp_recording("session.mcprec.jsonl")
def test_the_recorded_session_replays(mcp_replay):
    mcp_replay(server)


async def test_a_book_is_added_once():
    reports = []
    async with Client(server, progress=reports.append) as client:
        added = await client.call_tool("add_books", BOOKS, result_type=list[Book])
        assert [book.title for book in added] == ["Emma", "Persuasion"]
        assert await titles_by("Austen", client) == ["Emma", "Persuasion"]
    assert [report.progress for report in reports] == [1, 2, 3]


@pytest.mark.parametrize(
    ("is_sure", "left"), [(True, ["Persuasion"]), (False, BOOKS["titles"][:2])]
)
async def test_a_book_is_removed_only_if_the_user_is_sure(is_sure, left):
    async with Client(server, elicitation=lambda _: {"sure": is_sure}) as client:
        await client.call_tool("add_books", BOOKS)
        await client.call_tool("remove_book", {"title": "Emma"})
        assert await titles_by("Austen", client) == left


async def test_a_missing_book_is_no_book_to_remove():
    async with Client(server, elicitation=lambda _: {"sure": True}) as client:
        with pytest.raises(ToolError, match="no book in the list has the title 'Ulysses'"):
            await client.call_tool("remove_book", {"title": "Ulysses"})


async def test_the_prompt_names_the_books():
    async with Client(server) as client:
        await client.call_tool("add_books", BOOKS)
        prompt = await client.get_prompt("recommend", {"author": "Austen"})
    assert "Emma, Persuasion" in prompt.messages[0].content.text
