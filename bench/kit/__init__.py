"""What the questions share: sides, rounds, tables, evidence, and the programs that we are compared with."""
