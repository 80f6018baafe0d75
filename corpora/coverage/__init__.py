"""Which branches of chat templates ran on a corpus, and what a changed template may do that no conversation shows.

``recording`` marks a template before jinja2 compiles it, ``installed`` does so for this process's transformers;
``tree`` and ``covered`` are what comes of it, as data for a snapshot's footer; ``changes`` compares two of those:
``differences`` aligns the templates, ``equivalence`` proves what it can, ``taint`` follows names; ``explanation``
says which change shows in a text. All but the first two are pure and need no jinja2.
"""
