from ._server.transforms import Argument as Argument
from ._server.transforms import CallTool as CallTool
from ._server.transforms import Fixed as Fixed
