"""A student with competences in a plane of tasks: what the curricula are tried on. The toy space of
"Meta Automatic Curriculum Learning" (arXiv 2011.08463), read in the authors' code."""

import numpy as np

MOST, MASTERED = 100, 75  # competence of a cell at most, and from where it opens its neighbours


class CompetenceGrid:
    """`size` x `size` cells of the unit square. A task in an open cell raises its competence by 1;
    open are the first cell and those beside a cell with a competence of 75 or more. A task earns
    the competence of its cell over 100."""

    def __init__(self, size: int, first: tuple[int, int]) -> None:
        self.size, self.first = size, first
        self.competence = np.zeros((size, size), dtype=int)

    def train(self, task: np.ndarray) -> float:
        """What `task` [2] in [0, 1] earns, after the learning it gives."""
        row, column = (int(c) for c in np.minimum(task * self.size, self.size - 1).astype(int))
        if self.is_open(row, column):
            self.competence[row, column] = min(self.competence[row, column] + 1, MOST)
        return float(self.competence[row, column]) / MOST

    def is_open(self, row: int, column: int) -> bool:
        if (row, column) == self.first:
            return True
        beside = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
        return any(
            0 <= r < self.size and 0 <= c < self.size and self.competence[r, c] >= MASTERED
            for r, c in beside
        )

    def mastered(self) -> float:
        """Per cent of the cells with a competence above 75."""
        return 100.0 * float((self.competence > MASTERED).mean())

    def tested(self) -> np.ndarray:
        """The competences of all cells [size^2]."""
        return self.competence.flatten().astype(float) / MOST


class Oracle:
    """A teacher that knows the student: a task in the middle of an open cell that is not mastered
    yet, the nearest to the first; then uniform ones."""

    def __init__(self, student: CompetenceGrid, seed: int) -> None:
        self.student, self.draws = student, np.random.default_rng(seed)
        cells = [(r, c) for r in range(student.size) for c in range(student.size)]
        row, column = student.first
        self.cells = sorted(cells, key=lambda cell: abs(cell[0] - row) + abs(cell[1] - column))
        self.next = 0

    def sample(self) -> np.ndarray:
        while self.next < len(self.cells):
            cell = self.cells[self.next]
            if self.student.competence[cell] <= MASTERED:
                return (np.array(cell) + 0.5) / self.student.size
            self.next += 1
        return self.draws.uniform(size=2)

    def update(self, task: np.ndarray, reward: float) -> bool:
        return False


class Uniform:
    """Uniform tasks."""

    def __init__(self, seed: int) -> None:
        self.draws = np.random.default_rng(seed)

    def sample(self) -> np.ndarray:
        return self.draws.uniform(size=2)

    def update(self, task: np.ndarray, reward: float) -> bool:
        return False
