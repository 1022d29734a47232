"""The glucose, insulin and meal model of UVa/Padova (type 1) for many patients at once, as
simglucose states it: Dalla Man, Rizza and Cobelli (2007), "Meal simulation model of the
glucose-insulin system", with subcutaneous insulin and glucose. Time in minutes."""

from typing import NamedTuple

import torch
from torch import Tensor


class Patients(NamedTuple):
    """Parameters [B] by the names of the model's papers: BW is the weight (kg), Vg and Vi the
    volumes of glucose (dl/kg) and insulin (l/kg), the others are rates (1/min) and shares."""

    BW: Tensor
    Fsnc: Tensor
    Ib: Tensor
    Km0: Tensor
    Vg: Tensor
    Vi: Tensor
    Vm0: Tensor
    Vmx: Tensor
    b: Tensor
    d: Tensor
    f: Tensor
    k1: Tensor
    k2: Tensor
    ka1: Tensor
    ka2: Tensor
    kabs: Tensor
    kd: Tensor
    ke1: Tensor
    ke2: Tensor
    ki: Tensor
    kmax: Tensor
    kmin: Tensor
    kp1: Tensor
    kp2: Tensor
    kp3: Tensor
    ksc: Tensor
    m1: Tensor
    m2: Tensor
    m30: Tensor
    m4: Tensor
    p2u: Tensor


# Rows of a body [13, B]: glucose in the stomach, solid and liquid, and in the gut (mg); in plasma
# and tissue (mg/kg); insulin in plasma (pmol/kg), its action on use, two delayed insulins (pmol/l);
# insulin in the liver and in two depots under the skin (pmol/kg); glucose under the skin (mg/kg).
SIZE = 13


def emptying(p: Patients, stomach: Tensor, meal: Tensor) -> Tensor:
    """[B] rate (1/min) at which a stomach with `stomach` mg, of a meal of `meal` mg, empties: kmax
    when full and when nearly empty, less between; kmax where there was no meal."""
    size = torch.where(meal > 0, meal, 1.0)
    rising = torch.tanh(2.5 / ((1 - p.b) * size) * (stomach - p.b * size))
    falling = torch.tanh(2.5 / (p.d * size) * (stomach - p.d * size))
    rate = p.kmin + (p.kmax - p.kmin) / 2 * (rising - falling + 2)
    return torch.where(meal > 0, rate, p.kmax)


def slope(p: Patients, body: Tensor, eaten: Tensor, insulin: Tensor, meal: Tensor) -> Tensor:
    """[13, B] change a minute of `body` under `eaten` mg/min and `insulin` pmol/kg/min; `meal` mg
    is the content of the stomach when the meal began and what was eaten since. Amounts (but the
    insulins' actions) that have fallen below zero stand still, as in simglucose."""
    solid, liquid, gut, plasma, tissue, i_plasma, action, i_1, i_d, liver, skin_1, skin_2, skin = (
        body.unbind()
    )
    rate = emptying(p, solid + liquid, meal)
    appearing = p.f * p.kabs * gut / p.BW
    produced = (p.kp1 - p.kp2 * plasma - p.kp3 * i_d).clamp(min=0)
    excreted = p.ke1 * (plasma - p.ke2).clamp(min=0)
    used = (p.Vm0 + p.Vmx * action) * tissue / (p.Km0 + tissue)
    level = i_plasma / p.Vi
    exchange = p.k1 * plasma - p.k2 * tissue
    change = torch.stack(
        [
            eaten - p.kmax * solid,
            p.kmax * solid - rate * liquid,
            rate * liquid - p.kabs * gut,
            produced + appearing - p.Fsnc - excreted - exchange,
            exchange - used,
            p.m1 * liver - (p.m2 + p.m4) * i_plasma + p.ka1 * skin_1 + p.ka2 * skin_2,
            p.p2u * (level - p.Ib - action),
            p.ki * (level - i_1),
            p.ki * (i_1 - i_d),
            p.m2 * i_plasma - (p.m1 + p.m30) * liver,
            insulin - (p.ka1 + p.kd) * skin_1,
            p.kd * skin_1 - p.ka2 * skin_2,
            p.ksc * (plasma - skin),
        ]
    )
    return torch.where((body < 0) & _stopping(body), 0.0, change)


def _stopping(body: Tensor) -> Tensor:
    """[13, 1] bool: which amounts stand still below zero."""
    stops = [False] * 3 + [True] * 3 + [False] * 3 + [True] * 4
    return torch.tensor(stops, device=body.device)[:, None]


def one_minute(
    p: Patients, body: Tensor, eaten: Tensor, insulin: Tensor, meal: Tensor, steps: int
) -> Tensor:
    """`body` [13, B] a minute later: `steps` steps of the classic Runge-Kutta method."""
    h = 1.0 / steps
    given = (eaten, insulin, meal)
    for _ in range(steps):
        first = slope(p, body, *given)
        second = slope(p, body + h / 2 * first, *given)
        third = slope(p, body + h / 2 * second, *given)
        fourth = slope(p, body + h * third, *given)
        body = body + h / 6 * (first + 2 * second + 2 * third + fourth)
    return body
