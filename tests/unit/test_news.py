"""Commits that are announced within a process: who waits for a table hears of it, and of no other."""

import threading

from lakehouse.stream import news


def test_a_commit_of_one_of_the_tables_ends_the_wait():
    seen = news.commits(["first", "second"])
    heard = threading.Thread(target=news.wait, args=(["first", "second"], seen, 60.0))
    heard.start()
    news.announce("second")
    heard.join(30)
    assert not heard.is_alive()
    assert not news._waiting["first"] and not news._waiting["second"]


def test_a_commit_before_the_wait_is_not_missed():
    seen = news.commits(["third"])
    news.announce("third")
    news.wait(["third"], seen, 60.0)  # returns at once: nothing is announced after it
    assert news.commits(["third"]) == seen + 1


def test_a_commit_of_another_table_wakes_nobody(monkeypatch):
    class Heard(threading.Event):
        """An event that is announced to while a thread waits."""

        def wait(self, timeout=None):
            news.announce("fifth")
            others = self.is_set()
            news.announce("fourth")
            woken.append((others, self.is_set()))
            return True

    woken: list[tuple[bool, bool]] = []
    monkeypatch.setattr(news.threading, "Event", Heard)
    news.wait(["fourth"], news.commits(["fourth"]), 60.0)
    assert woken == [(False, True)]
