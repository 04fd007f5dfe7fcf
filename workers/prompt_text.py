"""What prompts are made of: sentences that mean something, and words, in two languages. Gevent-free.

A text is an opener, a few words that no other prompt begins with, sentences, and words again. Every piece brings the
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


_ENGLISH = """
A harbour town keeps two clocks, one for the tide and one for the trains.
The committee asked for figures that could be checked by somebody who disliked the result.
Rain fell on the vineyard for nine days, and on the tenth the road to the mill was gone.
Explain to a new colleague why the oldest server in the room is still the busiest one.
Her notebook lists the price of bread in every city she crossed between March and August.
When the bridge was measured again, the northern pillar had settled by eleven millimetres.
Compare the two proposals with respect to cost, risk and the people who must live with them.
An orchestra tunes to the oboe because its pitch is the hardest to change in a hurry.
The letter was written in haste, folded twice, and delivered to the wrong house.
Summarise what the witness saw, what she inferred, and what she could not have known.
Every winter the ferry stops for a week, and the island learns again how much it needs salt.
Describe the steps by which a seed becomes a tree, leaving out nothing that takes a year.
""".strip().splitlines()
_CHINESE = """
港口的钟楼每天报两次时，一次给渔船，一次给火车。
请用三句话说明这份合同里哪些条款对乙方不利。
连续下了九天的雨，第十天早上，通往磨坊的路不见了。
向新来的同事解释，为什么机房里最旧的那台服务器反而最忙。
她的笔记本里记着从三月到八月经过的每座城市的面包价格。
重新测量大桥时，北侧的桥墩已经下沉了十一毫米。
比较这两个方案的成本、风险，以及要长期使用它们的人的感受。
乐队以双簧管定音，因为它的音高最不容易临时改变。
那封信写得匆忙，折了两次，最后送到了邻居家里。
概括证人看到了什么，推测了什么，又有什么是她不可能知道的。
每年冬天渡轮停航一周，岛上的人才想起盐有多么重要。
说明一粒种子怎样长成一棵树，凡是需要一年以上的步骤都不要省略。
""".strip().splitlines()
_ENGLISH_WORDS = """
time year people way day man thing world life hand part child eye place work week case point company number group
problem fact air back bird blue body book bread bridge city cloud coast corn door dream earth face field fire fish
flower forest garden glass gold grass green hill history home horse house ice iron island kitchen lake land law light
market metal minute money moon morning mother mountain music name night north ocean office oil paper party plan
""".split()
_CHINESE_WORDS = """
时间 人们 世界 生活 工作 问题 公司 城市 学生 老师 朋友 天气 春天 夏天 秋天 冬天 早上 晚上 音乐 历史 市场 山水 海洋 森林 花园 厨房 纸张
黄金 铁路 桥梁 河流 湖泊 岛屿 田野 草原 马匹 飞鸟 鱼类 面包 玉米 房屋 大门 窗户 办公 法律 数字 计划 梦想 故事 名字 母亲 孩子 眼睛 双手
身体 月亮 太阳 星空 云彩 空气 火焰 冰雪 石头 颜色
""".split()

LANGUAGES = {
    "en": Language(
        "Note:",
        tuple(f" {sentence}" for sentence in _ENGLISH),
        tuple(f" {word}" for word in _ENGLISH_WORDS),
        (" a", " the", " of", " in", " and", " x", " I", " 1", "\n", " -", "!"),
    ),
    "zh": Language(
        "注：",
        tuple(_CHINESE),
        tuple(f"{word}、" for word in _CHINESE_WORDS),
        ("的", "了", "一", "人", "，", "、", "。", "啊", " a", "\n", " 1", "!"),
    ),
}
