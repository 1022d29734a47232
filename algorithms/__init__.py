"""Algorithms, one file each. `ALGORITHMS` maps every name to its class."""

from pathlib import Path
from typing import Any

import longreach  # noqa: F401  refuses a foreign `mbrl`
from algorithms.a2pr import A2PR, A2PRConfig
from algorithms.awac import AWAC, AWACConfig
from algorithms.bc import BC, BCConfig
from algorithms.cdsa import CDSA, CDSAConfig
from algorithms.combo import COMBO, COMBOConfig
from algorithms.contrastive_rl import ContrastiveRL, ContrastiveRLConfig
from algorithms.coplanner import COPlanner, COPlannerConfig
from algorithms.cql import CQL, CQLConfig
from algorithms.crr import CRR, CRRConfig
from algorithms.discrete_cql import DiscreteCQL, DiscreteCQLConfig
from algorithms.discrete_iql import DiscreteIQL
from algorithms.discrete_sac_n import DiscreteSACN, DiscreteSACNConfig
from algorithms.ebt import EBT, EBTConfig
from algorithms.edac import EDAC, EDACConfig
from algorithms.expo import EXPO, EXPOConfig
from algorithms.f_dvl import FDVL, FDVLConfig
from algorithms.famo2o import FamO2O, FamO2OConfig
from algorithms.fql import FQL, FQLConfig
from algorithms.gcbc import GCBC, GCBCConfig
from algorithms.gciql import GCIQL, GCIQLConfig
from algorithms.gcivl import GCIVL, GCIVLConfig
from algorithms.generative_bc import GenerativeBC, GenerativeBCConfig
from algorithms.ggd_sac import GGDSAC, GGDSACConfig
from algorithms.hecrl import HECRL, HECRLConfig
from algorithms.hiql import HIQL, HIQLConfig
from algorithms.idql import IDQL, IDQLConfig
from algorithms.iql import IQL, IQLConfig
from algorithms.lift import LIFT, LIFTConfig
from algorithms.mbpo import MBPO, MBPOConfig
from algorithms.mobile import MOBILE, MOBILEConfig
from algorithms.mopo import MOPO, MOPOConfig
from algorithms.morel import MOReL, MOReLConfig
from algorithms.neubay import NEUBAY, NEUBAYConfig
from algorithms.odice import ODICE, ODICEConfig
from algorithms.pets import PETS, PETSConfig
from algorithms.pgd import PGD, PGDConfig
from algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from algorithms.props import PROPS, PROPSConfig
from algorithms.rambo import RAMBO, RAMBOConfig
from algorithms.ravl import RAVL, RAVLConfig
from algorithms.rebrac import ReBRAC, ReBRACConfig
from algorithms.recoil import ReCOIL, ReCOILConfig
from algorithms.rlpd import RLPD, RLPDConfig
from algorithms.ro2o import RO2O, RO2OConfig
from algorithms.sac import SAC, SACConfig
from algorithms.sac_n import SACN, SACNConfig
from algorithms.saw import SAW, SAWConfig
from algorithms.shac import SHAC, SHACConfig
from algorithms.smore import SMORe, SMOReConfig
from algorithms.stac import STAC, STACConfig
from algorithms.td3_bc import TD3BC, TD3BCConfig
from algorithms.wsrl import WSRL, WSRLConfig
from mbrl import agent_files, checkpoint
from mbrl.errors import CheckpointError, unknown_name

__all__ = [
    "A2PR",
    "ALGORITHMS",
    "AWAC",
    "BC",
    "CDSA",
    "COMBO",
    "CQL",
    "CRR",
    "EBT",
    "EDAC",
    "EXPO",
    "FDVL",
    "FQL",
    "GCBC",
    "GCIQL",
    "GCIVL",
    "GGDSAC",
    "HECRL",
    "HIQL",
    "IDQL",
    "IQL",
    "LIFT",
    "MBPO",
    "MOBILE",
    "MOPO",
    "NEUBAY",
    "ODICE",
    "PETS",
    "PGD",
    "PROPS",
    "RAMBO",
    "RAVL",
    "RLPD",
    "RO2O",
    "SAC",
    "SACN",
    "SAW",
    "SHAC",
    "STAC",
    "TD3BC",
    "WSRL",
    "A2PRConfig",
    "AWACConfig",
    "BCConfig",
    "CDSAConfig",
    "COMBOConfig",
    "COPlanner",
    "COPlannerConfig",
    "CQLConfig",
    "CRRConfig",
    "ContrastiveRL",
    "ContrastiveRLConfig",
    "DiscreteCQL",
    "DiscreteCQLConfig",
    "DiscreteIQL",
    "DiscreteSACN",
    "DiscreteSACNConfig",
    "EBTConfig",
    "EDACConfig",
    "EXPOConfig",
    "FDVLConfig",
    "FQLConfig",
    "FamO2O",
    "FamO2OConfig",
    "GCBCConfig",
    "GCIQLConfig",
    "GCIVLConfig",
    "GGDSACConfig",
    "GenerativeBC",
    "GenerativeBCConfig",
    "HECRLConfig",
    "HIQLConfig",
    "IDQLConfig",
    "IQLConfig",
    "LIFTConfig",
    "MBPOConfig",
    "MOBILEConfig",
    "MOPOConfig",
    "MOReL",
    "MOReLConfig",
    "NEUBAYConfig",
    "ODICEConfig",
    "PETSConfig",
    "PGDConfig",
    "PROPSConfig",
    "PolicyGradient",
    "PolicyGradientConfig",
    "RAMBOConfig",
    "RAVLConfig",
    "RLPDConfig",
    "RO2OConfig",
    "ReBRAC",
    "ReBRACConfig",
    "ReCOIL",
    "ReCOILConfig",
    "SACConfig",
    "SACNConfig",
    "SAWConfig",
    "SHACConfig",
    "SMORe",
    "SMOReConfig",
    "STACConfig",
    "TD3BCConfig",
    "WSRLConfig",
    "load",
]

# name -> (class, config class)
ALGORITHMS: dict[str, tuple[Any, Any]] = {
    "bc": (BC, BCConfig),
    "td3_bc": (TD3BC, TD3BCConfig),
    "rebrac": (ReBRAC, ReBRACConfig),
    "a2pr": (A2PR, A2PRConfig),
    "iql": (IQL, IQLConfig),
    "odice": (ODICE, ODICEConfig),
    "f_dvl": (FDVL, FDVLConfig),
    "recoil": (ReCOIL, ReCOILConfig),
    "awac": (AWAC, AWACConfig),
    "crr": (CRR, CRRConfig),
    "cql": (CQL, CQLConfig),
    "sac": (SAC, SACConfig),
    "stac": (STAC, STACConfig),
    "ggd_sac": (GGDSAC, GGDSACConfig),
    "sac_n": (SACN, SACNConfig),
    "edac": (EDAC, EDACConfig),
    "cdsa": (CDSA, CDSAConfig),
    "wsrl": (WSRL, WSRLConfig),
    "rlpd": (RLPD, RLPDConfig),
    "ro2o": (RO2O, RO2OConfig),
    "famo2o": (FamO2O, FamO2OConfig),
    "ebt": (EBT, EBTConfig),
    "generative_bc": (GenerativeBC, GenerativeBCConfig),
    "fql": (FQL, FQLConfig),
    "idql": (IDQL, IDQLConfig),
    "expo": (EXPO, EXPOConfig),
    "gcbc": (GCBC, GCBCConfig),
    "gcivl": (GCIVL, GCIVLConfig),
    "gciql": (GCIQL, GCIQLConfig),
    "contrastive_rl": (ContrastiveRL, ContrastiveRLConfig),
    "hiql": (HIQL, HIQLConfig),
    "hecrl": (HECRL, HECRLConfig),
    "smore": (SMORe, SMOReConfig),
    "saw": (SAW, SAWConfig),
    "mbpo": (MBPO, MBPOConfig),
    "lift": (LIFT, LIFTConfig),
    "mopo": (MOPO, MOPOConfig),
    "ravl": (RAVL, RAVLConfig),
    "neubay": (NEUBAY, NEUBAYConfig),
    "pgd": (PGD, PGDConfig),
    "morel": (MOReL, MOReLConfig),
    "combo": (COMBO, COMBOConfig),
    "rambo": (RAMBO, RAMBOConfig),
    "mobile": (MOBILE, MOBILEConfig),
    "pets": (PETS, PETSConfig),
    "coplanner": (COPlanner, COPlannerConfig),
    "shac": (SHAC, SHACConfig),
    "policy_gradient": (PolicyGradient, PolicyGradientConfig),
    "props": (PROPS, PROPSConfig),
    "discrete_cql": (DiscreteCQL, DiscreteCQLConfig),
    "discrete_iql": (DiscreteIQL, IQLConfig),
    "discrete_sac_n": (DiscreteSACN, DiscreteSACNConfig),
}


def load(path: str | Path, device: str = "cpu", **parts: Any) -> Any:
    """Read any agent that `save` or a run's checkpoint wrote. `parts` are those of one's own that
    it was made with (`model=`) and that settings cannot describe."""
    content = checkpoint.load(path)
    classes = {cls.__name__: (cls, kind) for cls, kind in ALGORITHMS.values()}
    name = content.get("algorithm")
    if str(name).startswith("Language"):
        raise CheckpointError(
            f"{path} holds a language model's run ({name}); `python -m experiments language "
            "evaluate FOLDER` reads it"
        )
    if name not in classes:
        raise unknown_name("algorithm in the checkpoint", str(name), classes)
    cls, kind = classes[name]
    return agent_files.restore(cls, content, device, kind, parts)
