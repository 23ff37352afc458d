// Sounds: their samples, and WAV files of what was recorded.

/** The samples of one channel, at a rate in Hz if one is given. */
export async function decode(file: Blob, rate = 0): Promise<{ samples: Float32Array; rate: number; seconds: number }> {
  const context = new AudioContext(rate ? { sampleRate: rate } : {});
  try {
    const sound = await context.decodeAudioData(await file.arrayBuffer());
    return { samples: sound.getChannelData(0), rate: sound.sampleRate, seconds: sound.duration };
  } finally {
    void context.close();
  }
}

/** A WAV file with 16 bits for each sample. */
export function wav(samples: Float32Array, rate: number): Blob {
  const view = new DataView(new ArrayBuffer(44 + samples.length * 2));
  const text = (at: number, word: string): void => [...word].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + samples.length * 2, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, rate * 2, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, samples.length * 2, true);
  samples.forEach((sample, i) => view.setInt16(44 + i * 2, Math.round(Math.max(-1, Math.min(1, sample)) * 32767), true));
  return new Blob([view.buffer], { type: "audio/wav" });
}

// The rate that most models of speech take, and some alone.
const SPEECH_HZ = 16000;

export interface Recording {
  stop: () => Promise<Blob>;
}

/** Records from the microphone. Throws an Error if the browser gives none. */
export async function record(): Promise<Recording> {
  if (!navigator.mediaDevices?.getUserMedia) throw new Error("The browser gives the microphone only to pages over HTTPS or on this machine.");
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const parts: Blob[] = [];
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.start();
  return {
    stop: async () => {
      await new Promise((resolve) => {
        recorder.onstop = resolve;
        recorder.stop();
      });
      for (const track of stream.getTracks()) track.stop();
      const { samples, rate } = await decode(new Blob(parts, { type: recorder.mimeType }), SPEECH_HZ);
      return wav(samples, rate);
    },
  };
}
