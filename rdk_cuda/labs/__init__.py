"""Systems that are right, but have no measured benefit yet: one folder each, with a page.

Nothing outside of this folder imports it. `docs/contributing.md` has the rule of admission.
"""
