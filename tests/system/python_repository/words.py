"""Streams words as an engine for language models does: one loop makes a step for all requests that are under way."""

import asyncio
import json
import queue
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        assert pb_utils.using_decoupled_model_transaction_policy(self.config)
        self.running = {}
        self.most = self.cancelled = 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.stopping = False
        self.engine = asyncio.run_coroutine_threadsafe(self.steps(), self.loop)
        self.answers = queue.Queue()
        self.sending = threading.Thread(target=self.send)
        self.sending.start()

    async def steps(self):
        while not self.stopping:
            self.most = max(self.most, len(self.running))
            for number, (sender, words, streams, said) in list(self.running.items()):
                if sender.is_cancelled():
                    self.cancelled += 1
                    del self.running[number]
                    self.answers.put((sender, None, True))
                    continue
                said.append(words[len(said)])
                last = len(said) == len(words)
                if streams or last:
                    self.answers.put((sender, said[-1] if streams else " ".join(said), last))
                if last:
                    del self.running[number]
            await asyncio.sleep(0.002)

    def send(self):
        while (item := self.answers.get()) is not None:
            sender, text, last = item
            response = None
            if text is not None:
                response = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([text], np.object_))])
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)

    def execute(self, requests):
        for request in requests:
            prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
            streams = pb_utils.get_input_tensor_by_name(request, "stream")
            parameters = pb_utils.get_input_tensor_by_name(request, "sampling_parameters")
            count = json.loads(parameters.as_numpy()[0])["max_tokens"] if parameters is not None else 4
            sender = request.get_response_sender()
            if prompt == "how many":
                words = [f"{self.most} at once, {self.cancelled} cancelled"]
            else:
                words = [f"{prompt}{i}" for i in range(count)]
            self.running[id(sender)] = sender, words, bool(streams is not None and streams.as_numpy()[0]), []
        return

    def finalize(self):
        self.stopping = True
        self.engine.result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.answers.put(None)
        self.sending.join()
