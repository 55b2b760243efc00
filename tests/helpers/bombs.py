"""Small files that stand for more than a computer holds."""

from itertools import pairwise

# Nine values that stand for nine each, nine times: 9^9.
YAML_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{inner}'] * 9)}]\n" for inner, name in pairwise("abcdefghi")
)
