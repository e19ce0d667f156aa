from forgetless import networks
from forgetless.repair.profile import Group, Profile
from forgetless.repair.selection import Selection
from forgetless.repair.settings import Finetune


def test_the_profile_prints_a_table():
    selection = Selection(networks.resnet18(9), Finetune(groups=("bn.affine", "bn.stats", "fc")))
    assert str(selection.profile({}, 0)) == "\n".join([
        "group          S_g    parameters     share  chosen",
        "conv1            –         1,728    0.015%",
        "block1           –       147,456    1.320%",
        "block2           –       524,288    4.692%",
        "block3           –     2,097,152   18.769%",
        "block4           –     8,388,608   75.076%",
        "bn.affine        –         9,600    0.086%  yes",
        "bn.stats         –             0    0.000%  yes",
        "fc               –         4,617    0.041%  yes",
        "chosen: 0.127% of the parameters; shifts of the data compared: 0",
    ])  # fmt: skip


PROFILE = Profile(
    (
        Group("fc1", 0.25, 60, 0.6, chosen=False),
        Group("fc2", 1.0, 30, 0.3, chosen=False),
        Group("fc3", 1.75, 10, 0.1, chosen=True),
    ),
    comparisons=4,
)


def test_the_share_is_that_of_the_chosen_groups():
    assert PROFILE.chosen == ("fc3",)
    assert PROFILE.share == 0.1
    assert str(PROFILE).splitlines()[-1] == "chosen: 10.000% of the parameters; shifts of the data compared: 4"


def test_the_profile_is_plain_data():
    assert PROFILE.to_dict()["comparisons"] == 4
    assert PROFILE.to_dict()["groups"][2] == {
        "name": "fc3", "sensitivity": 1.75, "parameters": 10, "share": 0.1, "chosen": True
    }  # fmt: skip


def test_the_profile_is_a_picture(tmp_path):
    axes = PROFILE.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fc3", "fc2", "fc1"]
    assert [bar.get_width() for bar in axes.patches] == [1.75, 1.0, 0.25]
    axes.figure.savefig(tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 1000
