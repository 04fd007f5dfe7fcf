"""What prompts are made of: sentences that mean something, and words, in two languages. Gevent-free.

A text is an opener, a few characters that no other prompt begins with, sentences, and words. Every piece brings the
space before it, none a space behind it: so templates that trim a message do not shorten it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Language:
    """The pieces of one language."""

    opener: str
    sentences: tuple[str, ...]
    words: tuple[str, ...]
    #: Candidates for a piece of one token that may be repeated.
    fillers: tuple[str, ...]


_ENGLISH_SENTENCES = (
    " A harbour town keeps two clocks, one for the tide and one for the trains.",
    " The committee asked for figures that could be checked by somebody who disliked the result.",
    " Rain fell on the vineyard for nine days, and on the tenth the road to the mill was gone.",
    " Explain to a new colleague why the oldest server in the room is still the busiest one.",
    " Her notebook lists the price of bread in every city she crossed between March and August.",
    " When the bridge was measured again, the northern pillar had settled by eleven millimetres.",
    " Compare the two proposals with respect to cost, risk and the people who must live with them.",
    " An orchestra tunes to the oboe because its pitch is the hardest to change in a hurry.",
    " The letter was written in haste, folded twice, and delivered to the wrong house.",
    " Summarise what the witness saw, what she inferred, and what she could not have known.",
    " Every winter the ferry stops for a week, and the island learns again how much it needs salt.",
    " Describe the steps by which a seed becomes a tree, leaving out nothing that takes a year.",
)
_CHINESE_SENTENCES = (
    "港口的钟楼每天报两次时，一次给渔船，一次给火车。",
    "请用三句话说明这份合同里哪些条款对乙方不利。",
    "连续下了九天的雨，第十天早上，通往磨坊的路不见了。",
    "向新来的同事解释，为什么机房里最旧的那台服务器反而最忙。",
    "她的笔记本里记着从三月到八月经过的每座城市的面包价格。",
    "重新测量大桥时，北侧的桥墩已经下沉了十一毫米。",
    "比较这两个方案的成本、风险，以及要长期使用它们的人的感受。",
    "乐队以双簧管定音，因为它的音高最不容易临时改变。",
    "那封信写得匆忙，折了两次，最后送到了邻居家里。",
    "概括证人看到了什么，推测了什么，又有什么是她不可能知道的。",
    "每年冬天渡轮停航一周，岛上的人才想起盐有多么重要。",
    "说明一粒种子怎样长成一棵树，凡是需要一年以上的步骤都不要省略。",
)
_ENGLISH_WORDS = (
    "time people day thing life part eye work case company group fact back blue book "
    "bridge cloud corn dream face fire flower garden gold green history horse ice island lake "
    "law market minute moon mother music night ocean oil party "
)
_CHINESE_WORDS = (
    "时间 世界 工作 公司 学生 朋友 春天 秋天 早上 音乐 市场 海洋 花园 纸张 铁路 河流 岛屿 草原 飞鸟 面包 "
    "房屋 窗户 法律 计划 故事 母亲 眼睛 身体 太阳 云彩 火焰 石头 "
)

#: Digits of the number that a prompt begins with: single characters, which cost a token each in most tokenizers.
SALT = tuple(f" {character}" for character in "0123456789abcdefghijklmnopqrstuvwxyz")
LANGUAGES = {
    "en": Language(
        "Note:",
        _ENGLISH_SENTENCES,
        tuple(f" {word}" for word in _ENGLISH_WORDS.split()),
        (" a", " the", " of", " in", " and", " x", " I", " 1", "\n", " -", "!"),
    ),
    "zh": Language(
        "注：",
        _CHINESE_SENTENCES,
        tuple(f"{word}、" for word in _CHINESE_WORDS.split()),
        ("，", "、", "。", "的", "了", "一", "人", "啊", " a", "\n", " 1", "!"),
    ),
}
