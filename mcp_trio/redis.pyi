from ._redis.stores import RedisLimits as RedisLimits
from ._redis.stores import RedisStates as RedisStates
from ._redis.stores import RedisStores as RedisStores
