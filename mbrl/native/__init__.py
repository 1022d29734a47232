"""Updates in compiled code, where the machine has a C++ compiler. The learners' Python stays the
definition of their maths and does the work elsewhere. See docs/speed.md."""
