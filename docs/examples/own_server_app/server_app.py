"""A ServerApp of one's own: GGEUR around any strategy of Flower's, over fedgeo's ClientApp."""

from fedgeo.strategies import GGEUR
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

BASES = {"fedavg": FedAvg, "fedadam": FedAdam}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = GGEUR(BASES[str(config["base"])](), target=50, seed=1)
    # no arrays: a client is asked for the initial weights of its model
    result = strategy.start(grid, ArrayRecord(), num_rounds=int(config["num-server-rounds"]))
    context.state["arrays"] = result.arrays
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: accuracy {metrics['accuracy']:.4f}")
