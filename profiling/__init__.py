"""How fast the operators are and what drafters are worth; README.md has the commands.

Not part of the package: nsight/ profiles a decoder, bench/ times the operators, peers/ other
samplers, studies/ back claims of the documents, results/ has the figures that these cite.
"""
